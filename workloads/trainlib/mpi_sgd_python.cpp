// MpiSGD of ../cpp/mpi_sgd.hpp for Python: trainlib/cpp_sgd.py compiles this and wraps it.

#include <torch/extension.h>

#include "../cpp/mpi_sgd.hpp"

namespace {

using Tensors = std::vector<torch::Tensor>;
using Options = std::tuple<double, double, double, double, bool>;  // as trainlib/cpp_sgd.py lists them

void set(torch::optim::SGDOptions& options, const Options& given) {
  options.lr(std::get<0>(given));
  options.momentum(std::get<1>(given)).dampening(std::get<2>(given));
  options.weight_decay(std::get<3>(given)).nesterov(std::get<4>(given));
}

std::unique_ptr<MpiSGD> make(const std::vector<Tensors>& groups, int sync_iterations) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (auto& group : groups) {
    made.emplace_back(group, std::make_unique<torch::optim::SGDOptions>(0));
  }
  return std::make_unique<MpiSGD>(std::move(made), torch::optim::SGDOptions(0), sync_iterations);
}

void step(MpiSGD& optimizer, const std::vector<Options>& options) {
  for (size_t i = 0; i < options.size(); ++i) {
    set(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[i].options()), options[i]);
  }
  optimizer.step();
}

// Of each parameter, in the order of the groups; without one before its first step.
std::vector<std::optional<torch::Tensor>> get_momentum(MpiSGD& optimizer) {
  std::vector<std::optional<torch::Tensor>> found;
  for (auto& group : optimizer.param_groups()) {
    for (auto& tensor : group.params()) {
      auto state = optimizer.state().find(tensor.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) {
        found.emplace_back();
      } else {
        found.emplace_back(static_cast<torch::optim::SGDParamState&>(*state->second).momentum_buffer());
      }
    }
  }
  return found;
}

void set_momentum(MpiSGD& optimizer, const std::vector<std::optional<torch::Tensor>>& buffers) {
  size_t number = 0;
  optimizer.state().clear();
  for (auto& group : optimizer.param_groups()) {
    for (auto& tensor : group.params()) {
      if (auto& buffer = buffers.at(number++)) {
        auto state = std::make_unique<torch::optim::SGDParamState>();
        state->momentum_buffer(*buffer);
        optimizer.state()[tensor.unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;
  pybind11::class_<MpiSGD>(module, "MpiSGD")
      .def(pybind11::init(&make), Unlocked())
      .def("step", &step, Unlocked())
      .def("synchronize", &MpiSGD::synchronize, Unlocked())
      .def("get_momentum", &get_momentum)
      .def("set_momentum", &set_momentum)
      .def_property_readonly("world", &MpiSGD::world)
      .def_property("steps", &MpiSGD::steps, &MpiSGD::set_steps);
}
