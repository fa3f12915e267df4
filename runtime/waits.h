/* What submission waits for where it is room, as users see it: a trace has these words, and explain goes by them. */
#ifndef TESS_WAITS_H
#define TESS_WAITS_H

#define TESS_WAIT_ROOM  "room in RAM"
#define TESS_WAIT_PLACE "a place on the GPU"

#endif
