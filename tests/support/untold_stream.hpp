// SPDX-License-Identifier: Apache-2.0
// A stream whose failures its owner alone is told of.
#pragma once

#include "core/errors/make_error.hpp"
#include "runtime/machine_state.hpp"
#include "weft/backend/backend.hpp"
#include "weft/runtime/machine.hpp"

#include <string>

namespace samples {

/// Whether a synchronization by others lets work run behind a failure in such a stream, and one by its owner does not:
/// what is wrong, else empty.
inline std::string untold_stream_fault(const weft::machine& m, weft::device_id on) {
  weft::backend& driver = weft::detail::state_of(m)->backend_of(on);
  const weft::stream_handle own = weft::value_or_raise(driver.create_stream(on, 0, false));
  int ran = 0;
  const auto submit = [&](bool fails) {
    static_cast<void>(weft::value_or_raise(driver.call(own, [&ran, fails]() -> weft::result<void> {
      if (fails) return weft::make_error(weft::errc::kernel_failed, "it fails");
      ++ran;
      return {};
    })));
  };
  submit(true);
  m.synchronize();
  m[0].synchronize();
  submit(false);
  static_cast<void>(driver.synchronize(own, weft::no_deadline, {}));
  const int behind = ran;
  submit(false);
  static_cast<void>(driver.synchronize(own, weft::no_deadline, {}));
  driver.destroy_stream(own);
  return behind != 0 ? "others let it go on" : ran != 1 ? "its owner does not let it go on" : "";
}

}  // namespace samples
