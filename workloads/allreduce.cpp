// The all-reduce of reduce_all.py in C++: the same check, the same table.
//
//     clusterctl run allreduce.cpp            mpic++ -O2 allreduce.cpp && mpirun -np 2 ./a.out
//
// Each rank contributes ones times its rank; every element of the sum has to be W(W-1)/2 on every
// rank. Then one line per message size: microseconds of the slowest rank, algorithm bandwidth
// (bytes / time) and bus bandwidth (that x 2(W-1)/W), both in 10^9 bytes per second. The argument,
// if there is one, is the number of bytes of the largest message.

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kLength = 4;  // elements of the vector that is checked
constexpr int kRounds = 5;  // whose median counts
constexpr double kSeconds = 0.006;        // of each round
constexpr int kFewest = 2, kMost = 1000;  // repetitions in a round

// Seconds per all-reduce of the slowest rank.
double seconds(std::vector<float>& message, int count) {
  MPI_Barrier(MPI_COMM_WORLD);
  double started = MPI_Wtime();
  for (int i = 0; i < count; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, message.data(), static_cast<int>(message.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  double own = (MPI_Wtime() - started) / count, slowest = 0;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  long largest = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 2L << 20;
  if (largest < 8) {
    if (rank == 0) std::fprintf(stderr, "allreduce: error: the largest message needs 8 bytes\n");
    MPI_Finalize();
    return 2;
  }

  std::vector<double> vector(kLength, rank);
  MPI_Allreduce(MPI_IN_PLACE, vector.data(), kLength, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  double expected = world * (world - 1) / 2.0;
  int wrong = std::count(vector.begin(), vector.end(), expected) != kLength;
  int wrong_ranks = 0;
  MPI_Allreduce(&wrong, &wrong_ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (wrong_ranks) {
    if (rank == 0) {
      std::fprintf(stderr, "allreduce: error: the sum is not %g on %d of %d ranks\n", expected,
                   wrong_ranks, world);
    }
    MPI_Finalize();
    return 1;
  }
  if (rank == 0) {
    std::printf("ok: %d ranks, each holds %g = W(W-1)/2, over mpi\n", world, expected);
    if (world > 1) {
      std::printf("%12s %12s %12s %12s\n", "bytes", "latency us", "algbw GB/s", "busbw GB/s");
    }
  }
  for (long size = 8; world > 1 && size <= largest; size *= 8) {
    std::vector<float> message(size / sizeof(float), 0.0f);
    // The first one warms up; the fastest says what a round can hold on a busy machine.
    double guess = seconds(message, kFewest);
    for (int i = 0; i < 2; ++i) guess = std::min(guess, seconds(message, kFewest));
    int count = std::clamp(static_cast<int>(kSeconds / guess), kFewest, kMost);
    std::vector<double> rounds(kRounds);
    for (double& round : rounds) round = seconds(message, count);
    std::sort(rounds.begin(), rounds.end());
    double time = rounds[kRounds / 2];
    double bandwidth = size / time / 1e9;
    if (rank == 0) {
      std::printf("%12ld %12.2f %12.4f %12.4f\n", size, time * 1e6, bandwidth,
                  bandwidth * 2 * (world - 1) / world);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
