// SPDX-License-Identifier: Apache-2.0
// The smallest backend: it says what it is and leaves every other answer to the defaults of the facets, which name what
// is not offered. A port begins as a copy of this file and overrides one facet after the other (weft/backend/facets),
// in the order discover, allocate, order, move, run, peers, blocks, handles, multicast, watch; `weft conform --backend
// NAME` shows what holds so far.
#include "backends/null/factory.hpp"

namespace weft::null_device {
namespace {

class null_backend final : public backend {
 public:
  explicit null_backend(const backend_options& options) : backend(identity(options.first_device)) {}
  ~null_backend() override { close(); }

 private:
  static backend_identity identity(device_id first) {
    device_description only;
    only.name = "nothing";
    only.kind = backend_kind::null;
    only.uuid = "00000000-0000-8000-8000-000000000000";
    only.memory = bytes{1};
    only.compute_units = 1;
    only.simulated = true;
    topology layout = host_topology(1, bytes{1});
    layout.name = "null";
    layout.simulated = true;
    layout.devices[0].name = only.name;
    layout.devices[0].capabilities = capability::none;
    return {backend_kind::null, first, {std::move(only)}, std::move(layout)};
  }
};

}  // namespace

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept {
  auto made = std::make_unique<null_backend>(options);
  if (options.leave_out && options.leave_out(made->devices().front()))
    return error{.code = errc::not_found, .what = "its device is left out: an earlier backend of the machine has it"};
  return std::unique_ptr<backend>{std::move(made)};
}

}  // namespace weft::null_device
