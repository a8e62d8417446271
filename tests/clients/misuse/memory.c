// Keys, and memory that the card works with.
#include "misuse.h"

const struct misuse memory_cases[] = {{NULL, NULL}};
