/* Does nothing; has nothing to do with verbs unless it is built so that it looks like it. */
#ifdef NAMES_VERBS
const char *volatile name = "libibverbs.so.1";
#endif

int main(void)
{
    return 0;
}
