// Trains a network on MNIST with SGD over MPI, in C++ with libtorch (deephealthproject's mnist_mlp).
//
//     clusterctl data get mnist && clusterctl run workloads/cpp/mnist_mlp.cpp
//     clusterctl run workloads/cpp/mnist_mlp.cpp --synthetic 4096 --epochs 3
//
// An MLP of three hidden layers, as train_sgd_mpi.py has it. --cnn: two convolutions before one.

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "mpi_sgd.hpp"

namespace {

struct Options {
  int epochs = 10, batch = 200, hidden = 1024, sync = 1, synthetic = 0;
  double lr = 0.01, momentum = 0.9, decay = 0;
  bool cnn = false, nesterov = false;
  std::string data;
};

[[noreturn]] void refuse(const std::string& why, int rank) {
  if (rank == 0) std::fprintf(stderr, "mnist_mlp: error: %s\n", why.c_str());
  MPI_Finalize();
  std::exit(2);
}

Options parse(int argc, char** argv, int rank) {
  Options options;
  if (const char* root = std::getenv("CLUSTERCTL_DATA")) options.data = std::string(root) + "/mnist";
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--cnn" || name == "--nesterov") {
      (name == "--cnn" ? options.cnn : options.nesterov) = true;
      continue;
    }
    if (++i == argc) refuse(name + " is unknown, or needs a value", rank);
    char* end = nullptr;
    double value = std::strtod(argv[i], &end);
    if (name == "--data") {
      options.data = argv[i];
      continue;
    }
    if (*end || value < 0 || !std::isfinite(value)) refuse(name + " " + argv[i], rank);
    if (name == "--lr") options.lr = value;
    else if (name == "--momentum") options.momentum = value;
    else if (name == "--weight-decay") options.decay = value;
    else if (name == "--epochs") options.epochs = static_cast<int>(value);
    else if (name == "--batch-size") options.batch = static_cast<int>(value);
    else if (name == "--hidden") options.hidden = static_cast<int>(value);
    else if (name == "--sync-iterations") options.sync = static_cast<int>(value);
    else if (name == "--synthetic") options.synthetic = static_cast<int>(value);
    else refuse(name + " is unknown", rank);
  }
  if (options.batch < 1 || options.hidden < 1 || options.sync < 1) refuse("a size is less than 1", rank);
  return options;
}

struct Rows {
  torch::Tensor images, labels;  // (N, 784) in 0..1, (N)
};

// An IDX file of bytes, as its authors publish it, packed or not: its content behind `header` bytes.
torch::Tensor read_idx(const std::string& path, int header) {
  std::string command = "gzip -dcf '" + path + "' 2>/dev/null || gzip -dcf '" + path + ".gz' 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  std::string bytes;
  char part[1 << 16];
  for (size_t n; pipe && (n = std::fread(part, 1, sizeof part, pipe)) > 0;) bytes.append(part, n);
  if (pipe) pclose(pipe);
  if (bytes.size() <= static_cast<size_t>(header)) return {};
  auto size = static_cast<int64_t>(bytes.size()) - header;
  return torch::from_blob(&bytes[header], {size}, torch::kUInt8).clone();
}

Rows load(const Options& options, bool train, int rank) {
  if (options.synthetic) {  // ten clusters that overlap: the same on every rank
    torch::manual_seed(train ? 1 : 2);
    auto labels = torch::arange(train ? options.synthetic : options.synthetic / 4) % 10;
    torch::manual_seed(3);
    auto centres = torch::rand({10, 784});
    torch::manual_seed(train ? 4 : 5);
    return {centres.index({labels}) + 0.7 * torch::randn({labels.size(0), 784}), labels};
  }
  std::string name = options.data + (train ? "/train" : "/t10k");
  auto images = read_idx(name + "-images-idx3-ubyte", 16);
  auto labels = read_idx(name + "-labels-idx1-ubyte", 8);
  if (!images.defined() || !labels.defined() || images.numel() != labels.numel() * 784) {
    refuse("no MNIST in '" + options.data + "': `clusterctl data get mnist`, or --synthetic 4096", rank);
  }
  return {images.view({-1, 784}).to(torch::kFloat).div_(255), labels.to(torch::kLong)};
}

torch::nn::Sequential build(const Options& options) {
  using namespace torch::nn;
  int n = options.hidden;
  if (options.cnn) {
    return Sequential(Unflatten(UnflattenOptions(1, {1, 28, 28})),
                      Conv2d(Conv2dOptions(1, 32, 3)), ReLU(), Conv2d(Conv2dOptions(32, 64, 3)),
                      ReLU(), MaxPool2d(2), Flatten(), Linear(64 * 12 * 12, 128), ReLU(),
                      Linear(128, 10));
  }
  return Sequential(Linear(784, n), ReLU(), Linear(n, n), ReLU(), Linear(n, n), ReLU(), Linear(n, 10));
}

double test(torch::nn::Sequential& model, const Rows& rows, int rank, int world) {
  torch::NoGradGuard frozen;
  auto mine = torch::arange(rank, rows.labels.size(0), world);
  double counts[2] = {0, static_cast<double>(mine.size(0))};
  for (auto& part : mine.split(1000)) {
    auto guess = model->forward(rows.images.index({part})).argmax(1);
    counts[0] += guess.eq(rows.labels.index({part})).sum().item<double>();
  }
  MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return counts[0] / counts[1];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  auto options = parse(argc, argv, rank);
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) at::set_num_threads(std::atoi(threads));
  auto train = load(options, true, rank), held = load(options, false, rank);
  torch::manual_seed(7);
  auto model = build(options);
  auto chosen = torch::optim::SGDOptions(options.lr)
                    .momentum(options.momentum)
                    .weight_decay(options.decay)
                    .nesterov(options.nesterov);
  MpiSGD optimizer(model->parameters(), chosen, options.sync);
  // Every rank has as many rows: each takes as many steps.
  int64_t each = train.labels.size(0) / world;
  if (each < 1) refuse("fewer rows than ranks", rank);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    double started = MPI_Wtime(), loss_sum = 0;
    torch::manual_seed(100 + epoch);
    auto order = torch::randperm(train.labels.size(0)).narrow(0, rank * each, each);
    int64_t steps = 0;
    for (auto& part : order.split(options.batch)) {
      optimizer.zero_grad();
      auto logits = model->forward(train.images.index({part}));
      auto loss = torch::nn::functional::cross_entropy(logits, train.labels.index({part}));
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++steps;
    }
    optimizer.synchronize();
    double mean = loss_sum / steps;
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    double accuracy = test(model, held, rank, world), seconds = MPI_Wtime() - started;
    if (rank == 0) {
      std::printf("epoch %d loss %.4f accuracy %.4f seconds %.2f\n", epoch, mean / world, accuracy,
                  seconds);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
