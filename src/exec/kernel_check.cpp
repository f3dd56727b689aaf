// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/kernel_check.hpp"

#include "exec/kernel_table.hpp"
#include "weft/backend/registry.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

namespace weft {
namespace {

/// The compiler of one backend: that of its first device, or where there is none its own, which needs no device.
class text_compiler {
 public:
  explicit text_compiler(const backend_entry& entry) : entry_(entry) {
    auto opened = entry.open({});
    if (!opened) {
      missing_ = std::move(opened).error();
    } else if ((*opened)->devices().empty()) {
      missing_ = error{.code = errc::unsupported, .what = "it has no devices", .where = {}};
    } else {
      driver_ = std::move(*opened);
    }
  }

  [[nodiscard]] kernel_check check(const kernel_code& code) const {
    kernel_check made{code.name, std::string{entry_.name}, false, {}};
    if (missing_ && entry_.compile == nullptr) {
      made.why = missing_->what;
      return made;
    }
    const auto done = driver_ ? driver_->prepare(driver_->first_device(), code) : entry_.compile(code);
    made.is_tried = done || done.error().code != errc::unsupported;
    if (!done) made.why = done.error().what;
    if (!made.is_tried && missing_) made.why = missing_->what + "; " + made.why;
    return made;
  }

 private:
  const backend_entry& entry_;
  std::unique_ptr<backend> driver_;
  std::optional<error> missing_;
};

}  // namespace

std::vector<kernel_check> check_kernels(std::span<const std::shared_ptr<const kernel_code>> kernels) {
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (!kernels[i]) raise(errc::invalid_argument, "kernel " + std::to_string(i + 1) + " of those to check is null");
  }
  std::vector<text_compiler> compilers;
  for (const backend_entry& entry : built_backends()) {
    if (entry.kind != backend_kind::host && entry.kind != backend_kind::null) compilers.emplace_back(entry);
  }
  std::vector<kernel_check> checks;
  checks.reserve(kernels.size() * compilers.size());
  for (const auto& code : kernels) {
    for (const text_compiler& one : compilers) checks.push_back(one.check(*code));
  }
  return checks;
}

std::vector<kernel_check> check_kernels(const machine& m) {
  std::vector<std::shared_ptr<const kernel_code>> all;
  {
    detail::kernel_table& table = detail::kernels_of(*detail::state_of(m));
    const std::shared_lock lock{table.mutex};
    all.reserve(table.by_name.size());
    for (const auto& [name, code] : table.by_name) all.push_back(code);
  }
  return check_kernels(std::span<const std::shared_ptr<const kernel_code>>{all});
}

int detail::report_kernel_checks(std::span<const kernel_check> checks) {
  for (const kernel_check& one : checks) {
    std::printf("%s for %s: %s\n", one.kernel.c_str(), one.backend.c_str(),
                one.failed()   ? one.why.c_str()
                : one.is_tried ? "compiles"
                               : ("not tried: " + one.why).c_str());
  }
  if (std::any_of(checks.begin(), checks.end(), [](const kernel_check& c) { return c.failed(); })) return 1;
  constexpr int skipped = 77;
  return std::any_of(checks.begin(), checks.end(), [](const kernel_check& c) { return c.is_tried; }) ? 0 : skipped;
}

}  // namespace weft
