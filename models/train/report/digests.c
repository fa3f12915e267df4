/* The files of digests that a run leaves, one a rank. */
#include "models/train/report/digests.h"
#include "models/text/base/directories.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tess_digests_file_path(const char *output, int rank, int ranks)
{
    return tess_format("%s/digests/rank-%d-of-%d.tsv", output, rank, ranks);
}

/* Rank 0's. */
static tess_status make_directory(const char *output)
{
    TESS_FREED char *path = tess_format("%s/digests", output);
    tess_status status = TESS_OK;
    if (!tess_dirs_make(path, NULL))
        status = tess_error(tess_errno_status(errno), path, "cannot be made: %s", strerror(errno));
    DIR *dir = status == TESS_OK ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (!strncmp(e->d_name, "rank-", 5) && tess_ends(e->d_name, ".tsv")) unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
    return status;
}

static tess_status open_file(tess_digests_file *d)
{
    if (tess_gpus() > 0)
        return tess_error(TESS_INVALID, "digests.steps",
                          "what tasks of a GPU do leaves no digests (STARPU_NCUDA=0 has "
                          "the CPUs do it)");
    d->f = fopen(d->path, "w");
    return d->f ? TESS_OK : tess_error(tess_errno_status(errno), d->path, "cannot be written: %s", strerror(errno));
}

tess_status tess_digests_file_open(tess_digests_file *d, const tess_config *c)
{
    *d = (tess_digests_file){.first = c->digests.steps[0], .last = c->digests.steps[1]};
    if (!d->last) return TESS_OK;
    d->path = tess_digests_file_path(c->output, tess_rank(), tess_ranks());
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : make_directory(c->output)));
    return tess_ranks_agree(open_file(d));
}

void tess_digests_file_step(const tess_digests_file *d, tess_step *s, int64_t step)
{
    tess_step_digest(s, step >= d->first && step <= d->last ? d->f : NULL);
}

void tess_digests_file_drop(tess_digests_file *d)
{
    if (d->f) fclose(d->f);
    free(d->path);
    *d = (tess_digests_file){0};
}

tess_status tess_digests_file_close(tess_digests_file *d)
{
    tess_status status = TESS_OK;
    if (d->f && (fflush(d->f) || ferror(d->f)))
        status = tess_error(TESS_FAILED, d->path, "cannot be written: %s", strerror(errno));
    tess_digests_file_drop(d);
    return status;
}
