// SPDX-License-Identifier: Apache-2.0
// The smallest backend: it says what it is and leaves every other answer to the defaults of backend.hpp, which name
// what is not offered. A port begins as a copy of this file and takes over one group after the other, in the order
// discover, allocate, order, move, run, share, watch; `weft conform --backend NAME` shows what holds so far.
#include "backends/null/factory.hpp"

namespace weft::null_device {
namespace {

class null_backend final : public backend {
 public:
  explicit null_backend(const backend_options& options) : first_(options.first_device) {
    device_description only;
    only.name = "nothing";
    only.kind = backend_kind::null;
    only.uuid = "00000000-0000-8000-8000-000000000000";
    only.memory = bytes{1};
    only.compute_units = 1;
    only.simulated = true;
    description_ = std::move(only);
    layout_ = host_topology(1, bytes{1});
    layout_.name = "null";
    layout_.simulated = true;
    layout_.devices[0].name = "nothing";
    layout_.devices[0].capabilities = capability::none;
  }

  [[nodiscard]] backend_kind kind() const noexcept override { return backend_kind::null; }
  [[nodiscard]] std::span<const device_description> devices() const noexcept override { return {&description_, 1}; }
  [[nodiscard]] device_id first_device() const noexcept override { return first_; }
  [[nodiscard]] const topology& layout() const noexcept override { return layout_; }
  void close() noexcept override {}

 private:
  device_id first_;
  device_description description_;
  topology layout_;
};

}  // namespace

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept {
  auto made = std::make_unique<null_backend>(options);
  if (options.leave_out && options.leave_out(made->devices().front()))
    return error{.code = errc::not_found, .what = "its device is left out: an earlier backend of the machine has it"};
  return std::unique_ptr<backend>{std::move(made)};
}

}  // namespace weft::null_device
