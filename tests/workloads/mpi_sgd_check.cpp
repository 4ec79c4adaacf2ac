// Fifty steps of MpiSGD on a small network whose weights and rows are a formula; prints all weights
// of rank 0. Arguments: sync_iterations momentum dampening weight_decay nesterov idle. `idle`: rank 1
// has no gradient for the bias of the second layer.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "mpi_sgd.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double given[6] = {1, 0, 0, 0, 0, 0};
  for (int i = 1; i < argc && i < 7; ++i) given[i - 1] = std::atof(argv[i]);
  auto kind = torch::TensorOptions().dtype(torch::kDouble);
  auto make = [&](std::vector<int64_t> shape, double phase) {
    int64_t size = 1;
    for (auto n : shape) size *= n;
    return torch::sin(torch::arange(size, kind) * 0.7 + phase).view(shape);
  };
  auto first = make({5, 4}, 0 + rank).set_requires_grad(true);  // rank 0's count
  auto second = make({3, 5}, 1).set_requires_grad(true);
  auto bias = make({3}, 2).set_requires_grad(true);
  auto unused = make({2}, 3).set_requires_grad(true);
  auto options = torch::optim::SGDOptions(0.05).momentum(given[1]).dampening(given[2])
                     .weight_decay(given[3]).nesterov(given[4] != 0);
  auto slower = options;
  slower.lr(0.02);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{first, unused});
  groups.emplace_back(std::vector<torch::Tensor>{second, bias},
                      std::make_unique<torch::optim::SGDOptions>(slower));
  MpiSGD optimizer(std::move(groups), options, static_cast<int>(given[0]));
  auto rows = make({8, 4}, 10 + rank), wanted = make({8, 3}, 20 + rank);
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    auto hidden = torch::tanh(rows.matmul(first.t()));
    auto out = hidden.matmul(second.t()) + (given[5] && rank ? bias.detach() : bias);
    (out - wanted).pow(2).mean().backward();
    optimizer.step();
  }
  optimizer.synchronize();
  if (rank == 0) {
    for (auto& tensor : {first, second, bias, unused}) {
      auto flat = tensor.detach().reshape(-1).contiguous();
      for (int64_t i = 0; i < flat.numel(); ++i) std::printf("%.12f\n", flat[i].item<double>());
    }
  }
  MPI_Finalize();
  return 0;
}
