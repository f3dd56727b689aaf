// SPDX-License-Identifier: Apache-2.0
// A backend of one device for machines of several, whose answers a test knows: it moves no bytes, and its copies end
// when somebody waits for them.
#pragma once

#include "backend/address.hpp"
#include "backends/mixed/factory.hpp"
#include "weft/backend/backend.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace samples {

class scripted_part final : public weft::backend {
 public:
  explicit scripted_part(int id) : backend(identity(weft::device_id{id})) {}
  ~scripted_part() override { close(); }

  std::map<const void*, weft::memory_description> memory;  // by where it starts
  std::function<void()> on_adopt = [] {};                  // once it knows the range
  std::function<void()> on_reset = [] {};                  // before it waits for others

 private:
  static weft::backend_identity identity(weft::device_id id) {
    weft::backend_identity of{weft::backend_kind::null, id, {}, weft::host_topology(1, weft::bytes{1024})};
    of.devices.emplace_back().kind = of.kind;
    return of;
  }
  [[nodiscard]] weft::result<weft::memory_description> do_find(const void* address) override {
    const auto after = memory.upper_bound(address);
    if (after == memory.begin()) return weft::not_allocated(address);
    const weft::memory_description& found = std::prev(after)->second;
    if (weft::number(address) - weft::number(found.base) >= found.size.value()) return weft::not_allocated(address);
    return found;
  }
  [[nodiscard]] weft::result<void> do_adopt(weft::device_id device, void* base, weft::bytes size) override {
    memory[base] = {.base = base, .size = size, .kind = weft::memory_kind::adopted, .device = device};
    on_adopt();
    return {};
  }
  [[nodiscard]] weft::result<void> do_release(void* base) override {
    if (memory.erase(base) == 0) return weft::not_allocated(base);
    return {};
  }
  [[nodiscard]] weft::result<weft::event_ref> do_copy(weft::stream_handle, const weft::copy_request& request) override {
    if (!request.src_is_host && !do_find(request.src)) return weft::not_allocated(request.src);
    weft::event_ref made{new weft::event_record};
    made->owner = this;
    return made;
  }
  [[nodiscard]] weft::wait_outcome do_wait(weft::event_record& event, weft::wait_deadline,
                                           const std::stop_token&) noexcept override {
    if (!event.finished()) event.complete(nullptr);
    return weft::wait_outcome::ok;
  }
  [[nodiscard]] weft::result<void> do_reset(weft::device_id device) override {
    on_reset();
    await_others(device);
    return {};
  }
};

/// Two parts as one backend.
struct scripted_pair {
  scripted_pair() {
    std::vector<std::unique_ptr<weft::backend>> parts;
    for (scripted_part** one : {&first, &second}) {
      auto made = std::make_unique<scripted_part>(static_cast<int>(parts.size()));
      *one = made.get();
      parts.push_back(std::move(made));
    }
    joined = weft::mixed::join(std::move(parts), weft::host_topology(2, weft::bytes{1024}),
                               std::chrono::steady_clock::now());
  }
  scripted_part *first = nullptr, *second = nullptr;
  std::unique_ptr<weft::backend> joined;
};

}  // namespace samples
