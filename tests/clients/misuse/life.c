// The life of objects.
#include "misuse.h"

const struct misuse life_cases[] = {{NULL, NULL}};
