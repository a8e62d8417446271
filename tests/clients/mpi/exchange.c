// An MPI program whose ranks exchange bytes that sender and receiver can compute, and compare every
// received byte: a ring, all pairs at once, and the collectives broadcast, allreduce and alltoall.
// The sizes, from one byte to several megabytes, use short, eager and rendezvous protocols.
//
// Prints "exchanged N bytes as expected, M of them from other ranks" on rank 0; a wrong byte ends
// all ranks. The ranks must have sent at least M bytes to each other.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const int SIZES[] = {1, 8, 1000, 1024, 4096, 8191, 65536, 300001, 4 << 20};
enum { MAX_SIZE = 4 << 20, OUTSTANDING = 4, ROUNDS = 20 };

static int rank, ranks;
// Bytes that this rank has compared, and those of them that came from other ranks.
static unsigned long long compared, crossed;

// Returns the byte at the index `at` of message number `serial` from rank `from` to rank `to`.
static unsigned char expected(int from, int to, unsigned serial, size_t at)
{
    uint32_t pair = (uint32_t)(from * 131 + to * 17 + 1);
    uint32_t word = (uint32_t)at * 2654435761u ^ pair * 40503u ^ serial * 97u;
    return (unsigned char)(word >> 13);
}

static void fill(unsigned char *bytes, size_t count, int from, int to, unsigned serial)
{
    for (size_t at = 0; at < count; at++)
        bytes[at] = expected(from, to, serial, at);
}

static void compare(const char *what, const unsigned char *bytes, size_t count, int from, int to,
                    unsigned serial)
{
    for (size_t at = 0; at < count; at++) {
        unsigned char right = expected(from, to, serial, at);
        if (bytes[at] == right)
            continue;
        fprintf(stderr, "%s: rank %d has %02x instead of %02x at byte %zu of %zu from rank %d\n", what, rank,
                bytes[at], right, at, count, from);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    compared += count;
    if (from != rank)
        crossed += count;
}

static unsigned char *allocate(size_t count)
{
    unsigned char *bytes = malloc(count);
    if (!bytes) {
        fprintf(stderr, "no memory for %zu bytes\n", count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return bytes;
}

// Every rank sends to the next rank and receives from the previous one.
static void ring(size_t size, unsigned serial)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    unsigned char *out = allocate(size), *in = allocate(size);
    fill(out, size, rank, next, serial);
    MPI_Sendrecv(out, (int)size, MPI_BYTE, next, 1, in, (int)size, MPI_BYTE, previous, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    compare("ring", in, size, previous, rank, serial);
    free(out);
    free(in);
}

// Every rank has several outstanding messages to and from every rank. It posts its receives after
// half of the sends, so that some messages arrive unexpected.
static void pairs(size_t size, unsigned serial)
{
    int count = ranks * OUTSTANDING;
    unsigned char *out = allocate(size * (size_t)count), *in = allocate(size * (size_t)count);
    MPI_Request *requests = (MPI_Request *)allocate(sizeof(MPI_Request) * 2 * (size_t)count);
    MPI_Status *statuses = (MPI_Status *)allocate(sizeof(MPI_Status) * 2 * (size_t)count);
    for (int at = 0; at < count; at++)
        fill(out + size * (size_t)at, size, rank, at % ranks, serial + (unsigned)at);
    int half = count / 2, used = 0;
    for (int at = 0; at < half; at++)
        MPI_Isend(out + size * (size_t)at, (int)size, MPI_BYTE, at % ranks, at, MPI_COMM_WORLD, &requests[used++]);
    for (int at = 0; at < count; at++) {
        int tag = at / ranks * ranks + rank;
        MPI_Irecv(in + size * (size_t)at, (int)size, MPI_BYTE, at % ranks, tag, MPI_COMM_WORLD, &requests[used++]);
    }
    for (int at = half; at < count; at++)
        MPI_Isend(out + size * (size_t)at, (int)size, MPI_BYTE, at % ranks, at, MPI_COMM_WORLD, &requests[used++]);
    MPI_Waitall(used, requests, statuses);
    for (int at = 0; at < count; at++) {
        int tag = at / ranks * ranks + rank;
        compare("pairs", in + size * (size_t)at, size, at % ranks, rank, serial + (unsigned)tag);
    }
    free(out);
    free(in);
    free(requests);
    free(statuses);
}

static void broadcast(size_t size, unsigned serial)
{
    int root = (int)(serial % (unsigned)ranks);
    unsigned char *bytes = allocate(size);
    if (rank == root)
        fill(bytes, size, root, root, serial);
    MPI_Bcast(bytes, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
    compare("broadcast", bytes, size, root, root, serial);
    free(bytes);
}

static void all_to_all(size_t size, unsigned serial)
{
    size_t all = size * (size_t)ranks;
    unsigned char *out = allocate(all), *in = allocate(all);
    for (int to = 0; to < ranks; to++)
        fill(out + size * (size_t)to, size, rank, to, serial);
    MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        compare("alltoall", in + size * (size_t)from, size, from, rank, serial);
    free(out);
    free(in);
}

static void all_reduce(size_t size, unsigned serial)
{
    size_t count = size / 8 + 1;
    int64_t *mine = (int64_t *)allocate(count * 8), *sum = (int64_t *)allocate(count * 8);
    for (size_t at = 0; at < count; at++)
        mine[at] = (int64_t)(at * (unsigned)(rank + 1) + serial);
    MPI_Allreduce(mine, sum, (int)count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    int64_t factor = ranks * (ranks + 1) / 2;
    for (size_t at = 0; at < count; at++) {
        int64_t right = (int64_t)at * factor + (int64_t)serial * ranks;
        if (sum[at] == right)
            continue;
        fprintf(stderr, "allreduce: rank %d has %lld instead of %lld at number %zu\n", rank, (long long)sum[at],
                (long long)right, at);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    compared += count * 8;
    free(mine);
    free(sum);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned serial = 0;
    for (size_t at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
        size_t size = (size_t)SIZES[at];
        int rounds = size > 65536 ? 1 : size > 8192 ? 4 : ROUNDS;
        for (int round = 0; round < rounds; round++) {
            ring(size, serial++);
            if (size < MAX_SIZE)
                pairs(size, serial++);
            broadcast(size, serial++);
            all_to_all(size, serial++);
            all_reduce(size, serial++);
        }
    }
    unsigned long long mine[2] = {compared, crossed}, all[2] = {0, 0};
    MPI_Reduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("exchanged %llu bytes as expected, %llu of them from other ranks\n", all[0], all[1]);
    MPI_Finalize();
    return 0;
}
