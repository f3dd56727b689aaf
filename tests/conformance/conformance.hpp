// SPDX-License-Identifier: Apache-2.0
// What a backend must do, one sentence per case. Bring a backend up by running this until nothing falls short;
// docs/porting/conformance.md is the manual.
#pragma once

#include "weft/runtime/machine.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// `not_offered` is for what a machine says it does not have; it always comes with the reason.
enum class verdict_kind : std::uint8_t { holds, not_offered, falls_short };
[[nodiscard]] std::string_view to_string(verdict_kind kind);

struct verdict {
  verdict_kind kind = verdict_kind::holds;
  std::string why;  // empty when it holds
};

namespace conformance {

/// What a machine may lack without falling short.
enum class feature : std::uint8_t {
  none,
  devices,  // at least one device
  two_devices,
  peer_access,  // at least one pair of devices with access
  unified_memory,
  pinned_memory,
  timing,
  priorities,
  kernels,
  peer_limit,    // a device with a limited table of peers
  missing_path,  // a pair of devices without access
};
[[nodiscard]] std::string_view to_string(feature what);

/// Empty when the machine says that it has the feature, else why not. Asks what the machine advertises, and tries
/// nothing.
[[nodiscard]] std::string absence(const machine& m, feature what);

/// The expected-capability table: what every machine of a backend has. To lack one of these is to fall short.
[[nodiscard]] std::span<const feature> always_offered(backend_kind kind);

/// What a case works with. Every case has a machine of its own, opened at its first use.
/// Thread: one at a time.
class context {
 public:
  explicit context(const std::function<machine()>& open_machine, const std::optional<verdict>& fault = std::nullopt)
      : open_(&open_machine), fault_(fault) {}

  [[nodiscard]] machine& m();
  /// One more machine like it.
  [[nodiscard]] machine open() const { return (*open_)(); }
  /// What live_through_fault() said, where it was asked.
  [[nodiscard]] const std::optional<verdict>& fault() const { return fault_; }

 private:
  const std::function<machine()>* open_;
  std::optional<verdict> fault_;
  std::vector<machine> first_;
};

}  // namespace conformance

/// A case. One that needs a feature is run on a machine without it as well: it must be refused there.
struct conformance_case {
  std::string_view name;   // a sentence
  std::string_view group;  // the file it is in: "peer_copy"
  verdict (*run)(conformance::context&);
  conformance::feature needs = conformance::feature::devices;
};

struct case_result {
  std::string name;
  std::string group;
  verdict_kind verdict = verdict_kind::holds;
  std::string why;
  double seconds = 0;
};

struct run_options {
  std::string filter;                                  // part of a name or of a group; empty is all
  std::function<void(const case_result&)> after_each;  // called on the calling thread
  std::optional<verdict> fault;                        // of live_through_fault(); absent: not offered
};

/// What comes of a kernel that stores where no memory is: in a process of its own, a fork of this one, which must not
/// have opened a machine of a GPU. It ends within the time in which only a hang does not.
[[nodiscard]] verdict live_through_fault(const std::function<machine()>& open);

/// Whether a case is one of those; see run_options.
[[nodiscard]] bool is_among(const conformance_case& one, std::string_view filter);

/// Every case of the suite, in a fixed order.
[[nodiscard]] std::vector<conformance_case> conformance_cases();

/// Runs one case. Never throws for what a machine does.
[[nodiscard]] case_result run_case(const conformance_case& one, const std::function<machine()>& open,
                                   const std::optional<verdict>& fault = std::nullopt);

/// Runs the suite over the machines that `open` makes: one for each case, sometimes two. Never throws for what a
/// machine does.
[[nodiscard]] std::vector<case_result> run_conformance(const std::function<machine()>& open,
                                                       const run_options& options = {});

}  // namespace weft
