// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// Gives the library's own files the parts that a public class hides from users; the class makes this its friend. Ask
/// it in a `requires` too: on the object itself a hidden part is no error but a silent no.
struct internals {
  template <class Object, class... Parts>
  [[nodiscard]] static constexpr auto make(Parts&&... parts) -> decltype(Object(static_cast<Parts&&>(parts)...)) {
    return Object(static_cast<Parts&&>(parts)...);
  }
  [[nodiscard]] static constexpr auto state(const auto& of) -> decltype(of.state()) { return of.state(); }
  [[nodiscard]] static constexpr auto body(const auto& of) -> decltype(of.body()) { return of.body(); }
  [[nodiscard]] static constexpr auto native(const auto& of) -> decltype(of.native()) { return of.native(); }
  [[nodiscard]] static constexpr auto block(const auto& of) -> decltype(of.block()) { return of.block(); }
  [[nodiscard]] static constexpr auto view(const auto& of) -> decltype(of.view()) { return of.view(); }
  [[nodiscard]] static constexpr auto parts(const auto& of) -> decltype(of.parts()) { return of.parts(); }
  [[nodiscard]] static constexpr auto place(const auto& of) -> decltype(of.place()) { return of.place(); }
  [[nodiscard]] static constexpr auto queues(const auto& of) -> decltype(of.queues()) { return of.queues(); }
  [[nodiscard]] static constexpr auto far_copies(const auto& of) -> decltype(of.far_copies()) {
    return of.far_copies();
  }
};

/// Makes a public object through its private constructor.
template <class Object, class... Parts>
[[nodiscard]] constexpr auto make(Parts&&... parts)
    -> decltype(internals::make<Object>(static_cast<Parts&&>(parts)...)) {
  return internals::make<Object>(static_cast<Parts&&>(parts)...);
}

[[nodiscard]] constexpr decltype(auto) state_of(const auto& object) { return internals::state(object); }

}  // namespace weft::detail
