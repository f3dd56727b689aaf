// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/sharing.hpp"

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::host {

result<shared_bytes> sharing::give(const void* address, std::uint64_t size, handle_family family) {
  auto ticket = common::new_ticket(server_, family, detail::share_family::host, size);
  if (!ticket) return std::move(ticket).error();
  detail::share_ticket& h = *ticket;
  std::optional<error> refused;
  const auto note = [&](const std::shared_ptr<allocation>& memory) {
    refused = common::not_exportable(*memory, address, family, h);
    if (refused) return;
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
  return common::open_again(it == open_.end() ? nullptr : it->second.lock(), h);
}

result<opened_memory_description> sharing::open(std::optional<device_id> wish, const shared_bytes& handle,
                                                std::chrono::nanoseconds timeout, handle_family family) {
  auto ticket = common::ticket_of(handle, family, detail::share_family::host, server_);
  if (!ticket) return std::move(ticket).error();
  const detail::share_ticket& h = *ticket;
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
  auto fetched = detail::fetch_share(h, timeout, known);
  if (!fetched) return std::move(fetched).error();
  const std::uint64_t size = fetched->reply.size;
  struct stat about{};
  const std::size_t length = whole_pages(size);
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
  const auto memory = memory_.find(address);
  const std::lock_guard lock{mutex_};
  if (!memory) memory_.remove_stale(address);
  const auto is_last = common::close_once(memory, address);
  if (!is_last) return is_last.error();
  if (!*is_last) return {};
  open_.erase({memory->imported->key, memory->by});
  memory_.remove(memory);
  return {};
}

}  // namespace weft::host
