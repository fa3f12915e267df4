/* The failure of a run: of all failures until it is taken, that of the task that is earliest in the program. */
#include "runtime/progress/progress.h"
#include <pthread.h>
#include <string.h>

volatile bool tess_fault_stands;
static struct {
    pthread_mutex_t lock;
    uint32_t order;
    char text[TESS_FAULT_TEXT];
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tess_fault_set(uint32_t order, const char *text)
{
    pthread_mutex_lock(&fault.lock);
    if (!tess_fault_stands || order < fault.order) {
        fault.order = order;
        snprintf(fault.text, sizeof fault.text, "%s", text);
        tess_fault_stands = true;
    }
    pthread_mutex_unlock(&fault.lock);
}

uint32_t tess_fault_order(void)
{
    pthread_mutex_lock(&fault.lock);
    const uint32_t order = fault.order;
    pthread_mutex_unlock(&fault.lock);
    return order;
}

void tess_fault_take(char text[TESS_FAULT_TEXT])
{
    memcpy(text, fault.text, sizeof fault.text);
    tess_fault_stands = false;
}
