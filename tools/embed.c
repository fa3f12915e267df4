/* Makes a C file of any file: `embed NAME < FILE` prints an array NAME of its bytes with a 0 behind them. Runs while
 * the project is built. */
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    printf("extern const unsigned char %s[];\nconst unsigned char %s[] = {", argv[1], argv[1]);
    int c, n = 0;
    while ((c = getchar()) != EOF) printf("%s%d,", n++ % 24 ? "" : "\n", c);
    printf("\n0};\n");
    return ferror(stdin) || fflush(stdout) ? 1 : 0;
}
