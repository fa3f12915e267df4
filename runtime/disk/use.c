/* What the disk tier moved and holds. */
#include "runtime/disk/disk.h"

void tess_disk_use_read(tess_disk *d, tess_disk_use *out)
{
    pthread_mutex_lock(&d->lock);
    *out = d->use;
    if (d->open) out->busy_seconds += tess_seconds() - d->open_since;
    pthread_mutex_unlock(&d->lock);
    pthread_mutex_lock(&d->space_lock);
    out->capacity = d->capacity;
    out->used = d->used;
    out->peak = d->peak;
    pthread_mutex_unlock(&d->space_lock);
}
