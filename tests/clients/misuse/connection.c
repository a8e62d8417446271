// Attributes of connections, and what the two ends of one have to agree on.
#include "misuse.h"

const struct misuse connection_cases[] = {{NULL, NULL}};
