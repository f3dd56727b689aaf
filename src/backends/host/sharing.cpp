// SPDX-License-Identifier: Apache-2.0
#include "backends/host/sharing.hpp"

#include "backend/address.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::host {
namespace {

/// Why memory cannot be exported, if it cannot.
std::optional<error> not_exportable(const allocation& memory, const void* address, bool of_pool) {
  const std::string at = hex(address);
  if (memory.imported) {
    return make_error(errc::invalid_argument, "the memory at " + at + " belongs to process " +
                                                  std::to_string(memory.imported->exporter->pid()) +
                                                  ": pass on the handle it was opened with");
  }
  switch (memory.kind) {
    case memory_kind::device:
      break;
    case memory_kind::mapped:
      return make_error(errc::invalid_argument, "the address " + at + " is a peer mapping: export what it maps");
    case memory_kind::block:
      return make_error(errc::invalid_argument, "the address " + at + " is a mapping of a block: export the block");
    default:
      return make_error(errc::invalid_argument, "the memory at " + at + " is " + std::string{to_string(memory.kind)} +
                                                    ": only memory of a device is exported; allocate it as "
                                                    "weft::shareable_buffer");
  }
  if (memory.only && !of_pool) {
    return make_error(errc::invalid_argument, "the memory at " + at + " belongs to a pool: export it by its pool");
  }
  if (!memory.own_pages) {
    return make_error(errc::invalid_argument,
                      "the memory at " + at +
                          " has neighbours in its pages, which would be exported with it: allocate "
                          "it as weft::shareable_buffer");
  }
  return std::nullopt;
}

}  // namespace

std::optional<error> import_record::broken(const void* address) const {
  const auto now = static_cast<share_state>(state->load(std::memory_order_acquire));
  const std::string who = "process " + std::to_string(exporter->pid());
  if (now == share_state::freed) {
    return make_error(errc::closed, "stale: " + who + " has freed the memory that is open here at " + hex(address) +
                                        "; close it and ask for a new handle");
  }
  if (now != share_state::live) {
    return make_error(errc::closed,
                      "stale: " + who + " has closed the machine whose memory is open here at " + hex(address));
  }
  if (exporter->alive()) return std::nullopt;
  error dead = make_error(errc::peer_dead, who + ", whose memory is open here at " + hex(address) + ", has died");
  dead.scope = error_scope::process;
  return dead;
}

result<shared_bytes> sharing::give(const void* address, std::uint64_t size, bool of_pool) {
  auto door = server_.door();
  if (!door) return std::move(door).error();
  detail::share_ticket h;
  h.kind = of_pool ? detail::share_kind::pool_memory : detail::share_kind::memory;
  h.process = static_cast<std::uint32_t>(::getpid());
  h.boot = detail::this_boot();
  h.door = *door;
  h.size = size;
  std::optional<error> refused;
  const auto note = [&](const std::shared_ptr<allocation>& memory) {
    refused = not_exportable(*memory, address, of_pool);
    if (refused) return;
    h.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - memory->user);
    if (size > memory->size - h.offset) {
      refused = make_error(errc::out_of_range, "exporting " + to_string(bytes{size}) + " at offset " +
                                                   std::to_string(h.offset) + " of an allocation of " +
                                                   to_string(bytes{memory->size}));
      return;
    }
    if (!memory->exported) {
      std::byte* end = memory->device_side + memory->storage.size - page_size();
      auto* state = ::new (end) share_word{static_cast<std::uint64_t>(share_state::live)};
      memory->exported = std::make_shared<export_record>(export_record{server_, detail::random_number(), state});
      const std::uint64_t identity = identities_[memory_.local(memory->owner)];
      server_.offer(memory->exported->key, h.kind, [weak = std::weak_ptr{memory}, identity] {
        struct held {
          detail::share_grant grant;
          std::shared_ptr<allocation> memory;
        };
        std::shared_ptr<const detail::share_grant> none;
        auto alive = weak.lock();
        if (!alive) return none;
        auto made = std::make_shared<held>();
        made->grant.file = alive->storage.home->file.get();
        made->grant.size = alive->size;
        made->grant.device = identity;
        made->memory = std::move(alive);
        return std::shared_ptr<const detail::share_grant>{made, &made->grant};
      });
    }
    h.key = memory->exported->key;
  };
  if (!memory_.visit(address, note)) {
    return not_allocated(address);
  }
  if (refused) return *refused;
  return detail::encode(h);
}

device_id sharing::owner_of(std::uint64_t identity, device_id otherwise) const {
  const auto it = std::find(identities_.begin(), identities_.end(), identity);
  if (it == identities_.end()) return otherwise;  // a device that is hidden here
  return device_id{first_.value() + static_cast<int>(it - identities_.begin())};
}

result<opened_memory_description> sharing::again(const detail::share_ticket& h, device_id by) {
  const auto it = open_.find({h.key, by});
  const auto known = it == open_.end() ? nullptr : it->second.lock();
  if (!known || known->revoked.load(std::memory_order_acquire)) return opened_memory_description{};
  if (auto cause = known->imported->broken(known->user)) return *cause;
  if (h.offset > known->size || h.size > known->size - h.offset) {
    return make_error(errc::corrupt, "a handle names no range of what its process exported");
  }
  ++known->imported->opens;
  return opened_memory_description{known->user + h.offset, bytes{h.size}, known->owner};
}

result<opened_memory_description> sharing::open(std::optional<device_id> wish, const shared_bytes& handle,
                                                std::chrono::nanoseconds limit, bool of_pool) {
  auto decoded = detail::decode(handle);
  if (!decoded) return std::move(decoded).error();
  const detail::share_ticket& h = *decoded;
  if (h.kind != (of_pool ? detail::share_kind::pool_memory : detail::share_kind::memory)) {
    return make_error(
        errc::invalid_argument,
        "this is a handle of " + std::string{detail::to_string(h.kind)} + ", not of " +
            std::string{detail::to_string(of_pool ? detail::share_kind::pool_memory : detail::share_kind::memory)});
  }
  if (auto ok = detail::check_family(h, detail::share_family::host); !ok) return std::move(ok).error();
  if (h.door == server_.known_door()) {
    return make_error(
        errc::invalid_argument,
        "this handle was exported by this very machine; use what it names, a handle is for other processes",
        error_scope::call, 201);
  }
  std::shared_ptr<detail::process_watch> known;
  {
    const std::lock_guard lock{mutex_};
    if (const auto it = exporters_.find(h.door); it != exporters_.end()) known = it->second.lock();
  }
  if (wish) {
    const std::lock_guard lock{mutex_};
    auto had = again(h, *wish);
    if (!had || had->address != nullptr) return had;
  }
  auto fetched = detail::fetch_share(h, limit, known);
  if (!fetched) return std::move(fetched).error();
  const std::uint64_t size = fetched->reply.size;
  struct stat about{};
  const std::size_t length = (size + page_size() - 1) / page_size() * page_size();
  if (size == 0 || ::fstat(fetched->file.get(), &about) != 0 ||
      static_cast<std::uint64_t>(about.st_size) < length + page_size()) {
    return make_error(errc::corrupt, "what process " + std::to_string(h.process) + " shares is not memory of a device");
  }
  const device_id owner = owner_of(fetched->reply.device, wish.value_or(first_));
  const device_id by = wish.value_or(owner);
  const device_id a{by.value() - first_.value()}, b{owner.value() - first_.value()};
  if (by != owner && !machine_.can_access(a, b)) {
    return make_error(errc::peer_unsupported, to_string(by) + " cannot map the memory of " + to_string(owner) +
                                                  " that process " + std::to_string(h.process) +
                                                  " exported: open it on " + to_string(owner) + " and copy from there");
  }
  auto view = map_file(fetched->file.get(), 0, length + page_size(), true);
  if (!view) return std::move(view).error();
  auto made = std::make_shared<allocation>();
  made->kind = memory_kind::mapped;
  made->owner = owner;
  made->by = by;
  made->size = size;
  made->device_side = made->user = view->get().base;
  if (memory_.options().strict) {
    auto visible = reserve(length);
    if (!visible) return std::move(visible).error();
    made->user = visible->get().base;
    made->view_user = std::move(*visible);
  }
  made->imported = std::make_unique<import_record>();
  made->imported->key = h.key;
  made->imported->exporter = fetched->exporter;
  made->imported->state = reinterpret_cast<const share_word*>(view->get().base + length);
  made->view = std::move(*view);
  made->only = std::make_shared<common::access_list>(memory_.devices());
  made->only->set(memory_.local(by), access_right::read_write);
  if (auto cause = made->imported->broken(made->user)) return *cause;
  {
    // another thread may have opened it meanwhile: there is one address for all
    const std::lock_guard lock{mutex_};
    auto had = again(h, by);
    if (!had || had->address != nullptr) return had;
    std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(exporters_, [](const auto& entry) { return entry.second.expired(); });
    exporters_[h.door] = made->imported->exporter;
    open_[{h.key, by}] = made;
    memory_.add(made);
  }
  return opened_memory_description{made->user + h.offset, bytes{h.size}, owner};
}

result<void> sharing::close(void* address) {
  auto memory = memory_.find(address);
  if (!memory) return make_error(errc::not_found, "nothing is open at " + hex(address) + "; was it closed before?");
  if (!memory->imported) {
    return make_error(errc::invalid_argument,
                      "the memory at " + hex(address) + " is this process's own: it is freed, not closed");
  }
  const std::lock_guard lock{mutex_};
  if (memory->imported->opens == 0) {
    return make_error(errc::not_found, "nothing is open at " + hex(address) + "; was it closed before?");
  }
  if (--memory->imported->opens != 0) return {};
  open_.erase({memory->imported->key, memory->by});
  memory_.remove(memory);
  return {};
}

}  // namespace weft::host
