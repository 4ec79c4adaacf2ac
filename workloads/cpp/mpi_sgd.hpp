// SGD over MPI as an optimizer of libtorch: the mathematics of trainlib/mpi_sgd.py in C++.
//
//     MpiSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
//     ...
//     loss.backward();
//     optimizer.step();
//
// With `sync_iterations` 1 it is synchronous SGD (Chen et al., arXiv 1604.00981): every rank steps
// with the mean of all ranks' gradients, which is the step of one process on the rows of all ranks.
// With n above 1 it is local SGD (Stich, arXiv 1805.09767): each rank steps with its own gradients,
// and after every n-th step all weights become their mean, while momentum stays with its rank.
//
// All ranks take the same steps, between MPI_Init and MPI_Finalize; without MPI_Init it is one rank.
// Parameters are rank 0's at the beginning. A parameter without a gradient on some ranks has zeros there; one without a gradient
// on any rank keeps its value.
//
// After the SGD MPI of deephealthproject's EDDL (promort_pipeline, branch sgd_mpi).

#pragma once

#include <mpi.h>
#include <torch/torch.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

class MpiSGD : public torch::optim::SGD {
 public:
  // Groups may have options of their own, as with torch::optim::SGD.
  MpiSGD(std::vector<torch::optim::OptimizerParamGroup> groups, torch::optim::SGDOptions options,
         int sync_iterations = 1, MPI_Comm ranks = MPI_COMM_WORLD)
      : torch::optim::SGD(std::move(groups), options),
        sync_iterations_(sync_iterations),
        ranks_(ranks) {
    if (sync_iterations < 1) throw std::invalid_argument("sync_iterations is less than 1");
    int started = 0, rank = 0;
    MPI_Initialized(&started);
    if (started) {
      MPI_Comm_size(ranks, &world_);
      MPI_Comm_rank(ranks, &rank);
    }
    torch::NoGradGuard frozen;
    auto weights = parameters_of_all_groups();
    if (rank) {
      for (auto& weight : weights) weight.zero_();
    }
    reduce(weights, 1);
  }

  MpiSGD(std::vector<torch::Tensor> parameters, torch::optim::SGDOptions options,
         int sync_iterations = 1, MPI_Comm ranks = MPI_COMM_WORLD)
      : MpiSGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, options,
               sync_iterations, ranks) {}

  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::Tensor loss;
    if (closure) {
      torch::AutoGradMode on(true);
      loss = closure();
    }
    if (sync_iterations_ == 1) average_gradients();
    torch::optim::SGD::step();
    if (++steps_ % sync_iterations_ == 0 && sync_iterations_ > 1) average_weights();
    return loss;
  }

  // Averages the weights now, if steps were made since they last were: before they are tested or
  // saved. All ranks call it.
  void synchronize() {
    if (steps_ % sync_iterations_) average_weights();
  }

  int world() const { return world_; }
  int steps() const { return steps_; }
  void set_steps(int steps) { steps_ = steps; }

 private:
  std::vector<torch::Tensor> parameters_of_all_groups() {
    std::vector<torch::Tensor> found;
    for (auto& group : param_groups()) {
      for (auto& tensor : group.params()) found.push_back(tensor.detach());
    }
    return found;
  }

  void average_gradients() {
    if (world_ == 1) return;
    torch::NoGradGuard frozen;
    std::vector<torch::Tensor> owners, gradients, reduced;
    std::vector<float> own;
    for (auto& group : param_groups()) {
      for (auto& tensor : group.params()) {
        if (!tensor.requires_grad()) continue;
        own.push_back(tensor.grad().defined());
        if (!tensor.grad().defined()) tensor.mutable_grad() = torch::zeros_like(tensor);
        owners.push_back(tensor);
        gradients.push_back(tensor.grad());
      }
    }
    reduced = gradients;
    auto counts = torch::tensor(own);
    reduced.push_back(counts);
    reduce(reduced, world_);
    // One that no rank has must not be zeros: its parameter would decay, and move on.
    for (size_t i = 0; i < owners.size(); ++i) {
      if (counts[i].item<float>() == 0) owners[i].mutable_grad().reset();
    }
  }

  void average_weights() {
    torch::NoGradGuard frozen;
    auto weights = parameters_of_all_groups();
    reduce(weights, world_);
  }

  // Replaces all tensors by their sums over the ranks, divided by `divisor`: one message a type.
  void reduce(std::vector<torch::Tensor>& tensors, int divisor) {
    if (world_ == 1) return;
    std::map<torch::ScalarType, std::vector<torch::Tensor>> kinds;
    for (auto& tensor : tensors) kinds[tensor.scalar_type()].push_back(tensor);
    for (auto& [type, own] : kinds) {
      if (type != torch::kFloat && type != torch::kDouble) {
        throw std::invalid_argument(std::string("MpiSGD takes float and double, not ") +
                                    torch::toString(type));
      }
      std::vector<torch::Tensor> flat;
      for (auto& tensor : own) flat.push_back(tensor.reshape(-1).cpu());
      auto buffer = torch::cat(flat);
      MPI_Allreduce(MPI_IN_PLACE, buffer.data_ptr(), static_cast<int>(buffer.numel()),
                    type == torch::kFloat ? MPI_FLOAT : MPI_DOUBLE, MPI_SUM, ranks_);
      if (divisor > 1) buffer.div_(divisor);
      int64_t place = 0;
      for (auto& tensor : own) {
        tensor.copy_(buffer.narrow(0, place, tensor.numel()).view(tensor.sizes()));
        place += tensor.numel();
      }
    }
  }

  int sync_iterations_, world_ = 1, steps_ = 0;
  MPI_Comm ranks_;
};
