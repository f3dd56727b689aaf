// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// What a public object holds, for the library's own files: its class shows it to this friend and to no user.
struct internals {
  [[nodiscard]] static constexpr decltype(auto) state(const auto& of) { return of.state(); }
  [[nodiscard]] static constexpr decltype(auto) body(const auto& of) { return of.body(); }
  [[nodiscard]] static constexpr decltype(auto) native(const auto& of) { return of.native(); }
  [[nodiscard]] static constexpr decltype(auto) block(const auto& of) { return of.block(); }
  [[nodiscard]] static constexpr decltype(auto) view(const auto& of) { return of.view(); }
  [[nodiscard]] static constexpr decltype(auto) parts(const auto& of) { return of.parts(); }
  [[nodiscard]] static constexpr decltype(auto) place(const auto& of) { return of.place(); }
  [[nodiscard]] static constexpr decltype(auto) queues(const auto& of) { return of.queues(); }
  [[nodiscard]] static constexpr decltype(auto) far_copies(const auto& of) { return of.far_copies(); }
};

[[nodiscard]] constexpr decltype(auto) state_of(const auto& object) { return internals::state(object); }

}  // namespace weft::detail
