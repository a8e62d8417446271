// Rank 0 streams messages to rank 1, 64 at a time: bandwidth BYTES MESSAGES. Prints a line as
// perftest does: bytes, messages, 0, 0, million messages a second.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 64, WARM_UP = 20 };

// Sends or receives so many messages, and waits until the last one is there.
static void stream(int rank, char *bytes, int size)
{
    MPI_Request requests[AT_ONCE];
    char done = 0;

    for (int at = 0; at < AT_ONCE; at++) {
        if (rank == 0)
            MPI_Isend(bytes, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD, &requests[at]);
        else
            MPI_Irecv(bytes, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &requests[at]);
    }
    MPI_Waitall(AT_ONCE, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(&done, 1, MPI_CHAR, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&done, 1, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, size, rounds;
    double begun;
    char *bytes;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size = argc > 1 ? atoi(argv[1]) : 1;
    rounds = (argc > 2 ? atoi(argv[2]) : 0) / AT_ONCE + 1;
    bytes = calloc(1, size);
    if (!bytes)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int round = 0; round < WARM_UP; round++)
        stream(rank, bytes, size);
    begun = MPI_Wtime();
    for (int round = 0; round < rounds; round++)
        stream(rank, bytes, size);
    if (rank == 0)
        printf("%d %d 0 0 %.6f\n", size, rounds * AT_ONCE, rounds * AT_ONCE / (MPI_Wtime() - begun) / 1e6);
    MPI_Finalize();
    free(bytes);
    return 0;
}
