/* A case of a test program for each description: what op_run makes of a call is the program's. */
#define TESS_OP(name)                                                                                                  \
    void op_tasks_##name(void);                                                                                        \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        op_tasks_##name();                                                                                             \
    }
#define TESS_CODELET(name)           TESS_OP(name)
#define TESS_CODELET_SAME_BITS(name) TESS_OP(name)
#include "graph/ops.def"
