// Completion queues, their events, and asynchronous events.
#include "misuse.h"

const struct misuse event_cases[] = {{NULL, NULL}};
