// Rank 0 streams messages to rank 1, in groups of 64: bandwidth BYTES MESSAGES. Prints a line as
// perftest does: bytes, messages, 0, 0, million messages per second.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 64, WARM_UP_GROUPS = 20 };

// Sends or receives a group of messages, and waits until rank 1 has received all of them.
static void stream(int rank, char *bytes, int size)
{
    MPI_Request requests[GROUP];
    char done = 0;

    for (int at = 0; at < GROUP; at++) {
        if (rank == 0)
            MPI_Isend(bytes, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD, &requests[at]);
        else
            MPI_Irecv(bytes, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &requests[at]);
    }
    MPI_Waitall(GROUP, requests, MPI_STATUSES_IGNORE);
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
    rounds = (argc > 2 ? atoi(argv[2]) : 0) / GROUP + 1;
    bytes = calloc(1, size);
    if (!bytes)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int round = 0; round < WARM_UP_GROUPS; round++)
        stream(rank, bytes, size);
    begun = MPI_Wtime();
    for (int round = 0; round < rounds; round++)
        stream(rank, bytes, size);
    if (rank == 0)
        printf("%d %d 0 0 %.6f\n", size, rounds * GROUP, rounds * GROUP / (MPI_Wtime() - begun) / 1e6);
    MPI_Finalize();
    free(bytes);
    return 0;
}
