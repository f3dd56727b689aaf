// SPDX-License-Identifier: Apache-2.0
#include "weft/distributed/world.hpp"

#include "collective/ranks/rank_communicator_body.hpp"
#include "core/environment.hpp"
#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "distributed/announcement.hpp"
#include "distributed/engine/life_watch.hpp"
#include "distributed/engine/messenger.hpp"
#include "distributed/meeting/meeting.hpp"
#include "distributed/memory/far_copier.hpp"
#include "distributed/mpi/mpi_ranks.hpp"
#include "distributed/queues/queue_carrier.hpp"
#include "distributed/world_carrier.hpp"
#include "processes/packet.hpp"
#include "weft/core/raise.hpp"
#include "weft/processes/rendezvous.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

namespace weft {

struct world::body {
  rank self;
  std::vector<world_member> members;     // by rank
  std::vector<std::vector<rank>> nodes;  // the ranks of each
  std::shared_ptr<process_group> on_node;
  std::string engine;
  std::string engine_reason;
  std::string without_threads;  // the rank because of which no thread of ours may use the engine; empty: they may
  std::shared_ptr<detail::messenger> messages;
  std::shared_ptr<detail::queue_carrier> queues;
  std::shared_ptr<detail::far_copier> far_copies;
  std::shared_ptr<std::atomic<std::uint32_t>> numbers;  // of communicators, so far
  std::uint32_t joined = 0;                             // communicators of all ranks
};

namespace {

using namespace std::chrono_literals;
using detail::announcement;
using gathered = std::vector<std::vector<std::byte>>;
using gather_function = std::function<result<gathered>(std::span<const std::byte>)>;

void require(rank self, int size) {
  if (size < 1 || size > world::max_size) {
    raise(errc::invalid_argument,
          "a world has 1 to " + std::to_string(world::max_size) + " ranks, not " + std::to_string(size));
  }
  if (self.value() < 0 || self.value() >= size)
    raise(errc::invalid_argument, to_string(self) + " is not in a world of " + std::to_string(size));
}

std::string token_of(const world_options& options) {
  if (!options.token.empty()) return options.token;
  if (auto token = detail::environment("WEFT_WORLD_TOKEN")) return std::move(*token);
  const auto path = detail::environment("WEFT_WORLD_TOKEN_FILE");
  if (!path) return {};
  std::ifstream file{*path};
  std::string token{std::istreambuf_iterator<char>{file}, {}};
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) raise(errc::not_found, "WEFT_WORLD_TOKEN_FILE: \"" + *path + "\" cannot be read or is empty");
  return token;
}

std::chrono::nanoseconds silence_of(const world_options& options) {
  if (!options.silence)
    return std::chrono::seconds{detail::environment_number("WEFT_WORLD_SILENCE", 0, 86400).value_or(10)};
  if (*options.silence != 0ns && *options.silence < 100ms)
    raise(errc::invalid_argument, "world_options::silence is 0 or at least 100 ms");
  return *options.silence;
}

std::string node_of(const world_options& options) {
  constexpr std::size_t most_letters = 64;  // an announcement cuts longer ones, and two of them could look alike
  std::string name = options.node.empty() ? detail::environment("WEFT_WORLD_NODE").value_or("") : options.node;
  const auto is_shown = [](unsigned char letter) { return letter >= 0x20 && letter != 0x7f; };
  if (name.size() > most_letters || !std::ranges::all_of(name, is_shown)) {
    raise(errc::invalid_argument, std::string{options.node.empty() ? "WEFT_WORLD_NODE" : "world_options::node"} +
                                      " is a printable text of at most " + std::to_string(most_letters) + " bytes");
  }
  return name;
}

std::string about(const announcement& a) {
  return "rank " + std::to_string(a.rank) + " (host " + a.host + ", pid " + std::to_string(a.pid) + ")";
}

error incompatible(std::string what) { return make_error(errc::incompatible, std::move(what), error_scope::process); }

error not_of_each(std::size_t parts, int size) {
  return incompatible("the exchange gave " + std::to_string(parts) + " parts in a world of " + std::to_string(size));
}

// Reads the announcements of all ranks and refuses what cannot be: the same answer at every rank.
result<std::vector<announcement>> read_all(const gathered& said, int size) {
  if (said.size() != static_cast<std::size_t>(size)) return not_of_each(said.size(), size);
  std::vector<announcement> all;
  for (std::size_t r = 0; r < said.size(); ++r) {
    auto one = detail::read_announcement(said[r]);
    if (!one) {
      return make_error(one.error().code, "what rank " + std::to_string(r) + " says of itself: " + one.error().what,
                        error_scope::process);
    }
    if (one->rank != static_cast<std::int32_t>(r) || one->size != size) {
      return incompatible(about(*one) + " of " + std::to_string(one->size) + " has place " + std::to_string(r) +
                          " in a world of " + std::to_string(size));
    }
    all.push_back(std::move(*one));
    if (all.back().version != all.front().version) {
      return incompatible(about(all.back()) + " runs weft " + all.back().version + ", " + about(all.front()) +
                          " runs weft " + all.front().version);
    }
  }
  return all;
}

// Groups the ranks into nodes.
result<void> settle(world::body& made, const std::vector<announcement>& all) {
  std::map<std::string, int> known;                     // node by place
  std::map<std::pair<int, int>, std::size_t> by_local;  // rank by node and the launcher's local rank
  for (std::size_t r = 0; r < all.size(); ++r) {
    const announcement& a = all[r];
    const int node = known.try_emplace(a.place, static_cast<int>(known.size())).first->second;
    if (made.nodes.size() == static_cast<std::size_t>(node)) made.nodes.emplace_back();
    auto& here = made.nodes[static_cast<std::size_t>(node)];
    made.members.push_back({rank{a.rank}, node, rank{static_cast<int>(here.size())}, a.host, a.interface, a.address,
                            static_cast<pid_t>(a.pid)});
    here.push_back(rank{a.rank});
    if (here.size() > static_cast<std::size_t>(process_group::max_size)) {
      return make_error(errc::unsupported, about(a) + " is one too many: a node has at most " +
                                               std::to_string(process_group::max_size) + " ranks");
    }
    if (a.local_rank < 0) continue;
    const auto [first, is_new] = by_local.try_emplace({node, a.local_rank}, r);
    if (!is_new) {
      return incompatible(about(all[first->second]) + " and " + about(a) +
                          " are on one node, and both have LOCAL_RANK " + std::to_string(a.local_rank));
    }
  }
  return {};
}

// UCX of this rank, and what the others have to know of it; null where it is to do without, with the reason.
std::unique_ptr<detail::engine> open_ucx_of(rank self, int size, announcement& mine) {
  const auto wanted = static_cast<world_engine>(mine.wanted);
  if (size == 1) {
    mine.engine_reason = "it is alone";
  } else if (wanted == world_engine::none) {
    mine.engine_reason = "it is to do without";
  } else if (wanted == world_engine::mpi) {
    mine.engine_reason = "it is to take MPI";
  } else {
    auto made = detail::open_ucx(self.value(), size);
    auto address = made ? (*made)->address() : result<std::vector<std::byte>>{made.error()};
    if (address) {
      mine.engine = (*made)->name();
      mine.engine_address = std::move(*address);
      return std::move(*made);
    }
    mine.engine_reason = address.error().what;
  }
  return nullptr;
}

// Empty where all ranks have UCX in one release, else the reason. The same at every rank, as all that follows.
std::string why_no_ucx(const std::vector<announcement>& all) {
  for (const announcement& a : all) {
    if (a.engine.empty()) return about(a) + " has no UCX: " + a.engine_reason;
    if (a.engine != all.front().engine)
      return about(a) + " has " + a.engine + ", " + about(all.front()) + " has " + all.front().engine;
  }
  return {};
}

// Chooses the engine from what all ranks want and have: ucx, mpi, or none with the reason.
result<world_engine> common_engine(const std::vector<announcement>& all, bool has_mpi, std::string& reason) {
  const auto who_wants = [&](world_engine one) {
    return std::ranges::find(all, static_cast<std::uint32_t>(one), &announcement::wanted);
  };
  const auto wants_ucx = who_wants(world_engine::ucx);
  const auto wants_mpi = who_wants(world_engine::mpi);
  const auto without = who_wants(world_engine::none);
  reason = why_no_ucx(all);
  if (reason.empty()) return world_engine::ucx;
  if (all.size() == 1) return world_engine::none;
  if (has_mpi && wants_ucx == all.end() && without == all.end()) return world_engine::mpi;
  if (wants_ucx != all.end()) return incompatible(about(*wants_ucx) + " needs UCX: " + reason);
  if (wants_mpi == all.end()) return world_engine::none;
  return incompatible(about(*wants_mpi) + " needs MPI: " +
                      (has_mpi ? about(*without) + " is to do without" : "the world was not joined by it"));
}

/// Which rank keeps threads of weft's out of MPI, where that is the engine; empty: none does.
std::string rank_without_threads(const std::vector<announcement>& all, world_engine chosen) {
  const auto one = std::ranges::find(all, 0U, &announcement::mpi_takes_any_thread);
  return chosen == world_engine::mpi && one != all.end() ? about(*one) : std::string{};
}

/// The messages with a thread that looks for lost ranks, which goes with the last who holds them.
result<std::shared_ptr<detail::messenger>> watched(std::shared_ptr<detail::messenger> by, rank self, int size,
                                                   std::uint64_t silence) {
  if (silence == 0) return by;
  struct both {
    std::shared_ptr<detail::messenger> messages;
    std::unique_ptr<detail::life_watcher> watcher;
  };
  const auto time =
      std::min(std::chrono::nanoseconds{static_cast<std::int64_t>(silence)}, std::chrono::nanoseconds{24h});
  auto watcher = detail::life_watcher::start(by, self.value(), size, time);
  if (!watcher) return std::move(watcher).error();
  detail::messenger* const messages = by.get();
  return std::shared_ptr<detail::messenger>{std::make_shared<both>(std::move(by), std::move(*watcher)), messages};
}

result<process_group> meet_on_node(const world::body& made, std::uint64_t session, std::chrono::nanoseconds timeout,
                                   const std::stop_token& stop) {
  const world_member& me = made.members[made.self.index()];
  char name[48];
  std::snprintf(name, sizeof name, "weft-world-%016llx-%d", static_cast<unsigned long long>(session), me.node);
  join_options options;
  options.timeout = timeout;
  options.stop = stop;
  const auto size = static_cast<int>(made.nodes[static_cast<std::size_t>(me.node)].size());
  return rendezvous::at(name, me.local, size).join(options);
}

result<world> join_by(rank self, int size, std::optional<int> local_rank, announcement mine,
                      const world_options& options, wait_deadline until, const gather_function& gather,
                      const std::shared_ptr<detail::mpi::ranks>& by_mpi = nullptr) {
  mine.rank = self.value();
  mine.size = size;
  mine.local_rank = local_rank.value_or(-1);
  mine.wanted = static_cast<std::uint32_t>(options.engine);
  mine.silence = static_cast<std::uint64_t>(silence_of(options).count());
  mine.mpi_takes_any_thread = by_mpi && by_mpi->takes_any_thread() ? 1 : 0;
  mine.place += "/" + node_of(options);
  std::unique_ptr<detail::engine> engine = open_ucx_of(self, size, mine);
  auto said = gather(detail::written(mine));
  if (!said) return std::move(said).error();
  auto all = read_all(*said, size);
  if (!all) return std::move(all).error();
  auto made = std::make_unique<world::body>();
  made->self = self;
  if (auto settled = settle(*made, *all); !settled) return std::move(settled).error();
  auto chosen = common_engine(*all, by_mpi != nullptr, made->engine_reason);
  if (!chosen) return std::move(chosen).error();
  if (*chosen == world_engine::mpi) engine = detail::mpi::open_messages(by_mpi);
  if (*chosen == world_engine::none) engine = nullptr;
  const auto left =
      until == no_deadline ? no_deadline : std::max(until - detail::steady_now(), std::chrono::nanoseconds{0});
  auto group = meet_on_node(*made, all->front().session, left, options.stop);
  auto is_ready = group ? result<void>{} : result<void>{group.error()};
  if (engine && group) {
    made->engine_reason.clear();
    made->engine = engine->name();
    made->without_threads = rank_without_threads(*all, *chosen);
    // the shortest of all ranks; 0 where one looks for nobody
    const std::uint64_t silence =
        made->without_threads.empty() ? std::ranges::min(*all, {}, &announcement::silence).silence : 0;
    std::vector<std::vector<std::byte>> addresses;
    for (announcement& a : *all) addresses.push_back(std::move(a.engine_address));
    engine->introduce(std::move(addresses));
    auto messages =
        watched(std::make_shared<detail::messenger>(
                    std::move(engine),
                    [members = made->members](int r) { return to_string(members[static_cast<std::size_t>(r)]); }),
                self, size, silence);
    if (messages) {
      made->messages = std::move(*messages);
    } else {
      is_ready = std::move(messages).error();
    }
  }

  // Nobody is in before everybody is ready: the second round says so, or what failed where.
  const std::string failure = is_ready ? std::string{} : is_ready.error().what.substr(0, 1024);
  auto verdicts = gather(std::as_bytes(std::span{failure}));
  if (!is_ready) return std::move(is_ready).error();
  if (!verdicts) return std::move(verdicts).error();
  if (verdicts->size() != all->size()) return not_of_each(verdicts->size(), size);
  for (std::size_t r = 0; r < verdicts->size(); ++r) {
    if ((*verdicts)[r].empty()) continue;
    const auto& text = (*verdicts)[r];
    return make_error(errc::peer_dead, to_string(made->members[r]) + " could not join: " + detail::printable(text),
                      error_scope::process);
  }
  if (made->messages && made->without_threads.empty()) {
    made->queues = detail::queue_carrier::open(made->messages);
    made->far_copies = std::make_shared<detail::far_copier>(made->messages, self.value(), size);
  }
  made->numbers = std::make_shared<std::atomic<std::uint32_t>>(0);
  made->on_node = std::make_shared<process_group>(std::move(*group));
  return detail::make<world>(std::move(made));
}

}  // namespace

world::world(std::unique_ptr<body> made) : body_(std::move(made)) {}
world::~world() = default;
world::world(world&&) noexcept = default;
world& world::operator=(world&&) noexcept = default;

result<world> world::join(const world_place& place, const world_options& options, std::source_location where) {
  const called_from here{where};
  require(place.self, place.size);
  if (place.size > 1 && (place.host.empty() || place.port == 0))
    raise(errc::invalid_argument, "a world of several ranks needs the host and the port of rank 0");
  announcement mine = detail::announcement_of_this_process();
  detail::meeting_place at;
  at.self = place.self;
  at.size = place.size;
  at.host = place.host;
  at.port = place.port;
  at.interface =
      options.interface.empty() ? detail::environment("WEFT_WORLD_INTERFACE").value_or("") : options.interface;
  at.token = token_of(options);
  at.who = "host " + mine.host + ", pid " + std::to_string(mine.pid);
  at.version = mine.version;
  const wait_deadline until = at.until = deadline_after(detail::steady_now(), options.timeout);
  at.stop = options.stop;
  detail::meeting ranks{std::move(at)};
  if (auto open = ranks.open(); !open) return std::move(open).error();
  mine.interface = ranks.interface();
  mine.address = ranks.address();
  return join_by(place.self, place.size, place.local_rank, std::move(mine), options, until,
                 [&](std::span<const std::byte> bytes) { return ranks.all_gather(bytes); });
}

result<world> world::join(rank self, int size, const exchange_function& exchange, const world_options& options,
                          std::source_location where) {
  const called_from here{where};
  require(self, size);
  if (!exchange) raise(errc::invalid_argument, "a world without an exchange function");
  const auto gather = [&](std::span<const std::byte> mine) -> result<gathered> {
    try {
      return exchange(mine);
    } catch (const std::exception& failed) {
      return make_error(errc::closed, std::string{"the exchange of the ranks failed: "} + failed.what(),
                        error_scope::process);
    }
  };
  return join_by(self, size, std::nullopt, detail::announcement_of_this_process(), options,
                 deadline_after(detail::steady_now(), options.timeout), gather);
}

result<world> world::join_mpi(const void* communicator, const world_options& options, std::source_location where) {
  const called_from here{where};
  const auto until = deadline_after(detail::steady_now(), options.timeout);
  auto ranks = detail::mpi::ranks::of(communicator, until, options.stop);
  if (!ranks) return std::move(ranks).error();
  const rank self{(*ranks)->self()};
  require(self, (*ranks)->size());
  return join_by(
      self, (*ranks)->size(), std::nullopt, detail::announcement_of_this_process(), options, until,
      [&](std::span<const std::byte> mine) { return (*ranks)->all_gather(mine, until, options.stop); }, *ranks);
}

rank world::self() const { return body_->self; }
int world::size() const { return static_cast<int>(body_->members.size()); }
int world::nodes() const { return static_cast<int>(body_->nodes.size()); }

const world_member& world::member(rank which, std::source_location where) const {
  const called_from here{where};
  require(which, size());
  return body_->members[which.index()];
}

std::span<const rank> world::ranks_of(int node, std::source_location where) const {
  const called_from here{where};
  if (node < 0 || node >= nodes())
    raise(errc::invalid_argument, "there is no node " + std::to_string(node) + " among " + std::to_string(nodes()));
  return body_->nodes[static_cast<std::size_t>(node)];
}

const std::shared_ptr<process_group>& world::node_group() const { return body_->on_node; }

const std::string& world::engine() const { return body_->engine; }
const std::string& world::engine_reason() const { return body_->engine_reason; }

namespace {
[[noreturn]] void raise_no_engine(const world::body& of) {
  raise(errc::unsupported, "nothing carries messages between ranks: " + of.engine_reason);
}

[[noreturn]] void raise_no_threads(const world::body& of) {
  if (!of.messages) raise_no_engine(of);
  raise(errc::unsupported, "queues between nodes and copies between ranks need threads of weft's in MPI, and " +
                               of.without_threads +
                               " does not take them: begin with MPI_Init_thread and MPI_THREAD_MULTIPLE on every rank");
}

detail::messenger& messages_with(const world::body& of, rank other) {
  require(other, static_cast<int>(of.members.size()));
  if (other == of.self) raise(errc::invalid_argument, to_string(other) + " is this process: it sends itself nothing");
  if (!of.messages) raise_no_engine(of);
  return *of.messages;
}
}  // namespace

result<void> world::send(rank to, std::uint32_t tag, std::span<const std::byte> bytes, std::chrono::nanoseconds timeout,
                         const std::stop_token& stop, std::source_location where) {
  const called_from here{where};
  return messages_with(*body_, to).send(to.value(), tag, bytes, timeout, stop);
}

result<std::size_t> world::receive(rank from, std::uint32_t tag, std::span<std::byte> into,
                                   std::chrono::nanoseconds timeout, const std::stop_token& stop,
                                   std::source_location where) {
  const called_from here{where};
  return messages_with(*body_, from).receive(from.value(), tag, into, timeout, stop);
}

std::string world::transport(rank to, std::source_location where) const {
  const called_from here{where};
  return messages_with(*body_, to).transport_to(to.value());
}

const std::shared_ptr<detail::queue_carrier>& world::queues() const {
  if (!body_->queues) raise_no_threads(*body_);
  return body_->queues;
}

const std::shared_ptr<detail::far_copier>& world::far_copies() const {
  if (!body_->far_copies) raise_no_threads(*body_);
  return body_->far_copies;
}

rank_communicator world::communicator(const device& mine, const rank_communicator_options& options,
                                      std::source_location where) {
  const called_from here{where};
  if (size() > detail::most_ranks) {
    raise(errc::unsupported, "a communicator has at most " + std::to_string(detail::most_ranks) +
                                 " ranks, this world has " + std::to_string(size()));
  }
  if (!body_->messages && nodes() > 1) raise_no_engine(*body_);
  std::vector<rank> members;
  std::vector<int> all, on;
  for (const world_member& one : body_->members) {
    members.push_back(one.node == member(self()).node ? one.local : rank{-1});
    all.push_back(one.rank.value());
    on.push_back(one.node);
  }
  const std::uint32_t number = body_->joined++;
  std::unique_ptr<detail::far_ranks> far;
  std::shared_ptr<detail::engine_group> group;
  if (body_->messages) {
    group = body_->messages->all_ranks();
    far = std::make_unique<detail::far_ranks>(
        std::make_unique<detail::world_carrier>(body_->messages, body_->numbers, std::move(all), 2 * number, group),
        std::move(on), self().value());
  }
  auto made =
      detail::rank_communicator_body::meet(body_->on_node, std::move(members), detail::collective_tag(number, 3), mine,
                                           options, options.timeout, std::move(far));
  if (group) body_->messages->settle(*group, options.timeout);
  return detail::make<rank_communicator>(std::move(made));
}

std::vector<world_engine_status> world_engines() {
  const auto ucx = detail::version_of_ucx();
  const auto mpi = detail::mpi::running();
  return {{"ucx", static_cast<bool>(ucx), ucx ? *ucx : ucx.error().what},
          {"mpi", static_cast<bool>(mpi), mpi ? (*mpi)->name : mpi.error().what}};
}

std::string to_string(const world_member& member) {
  return to_string(member.rank) + " (node " + std::to_string(member.node) + ", host " + member.host + ", pid " +
         std::to_string(member.pid) + ")";
}

}  // namespace weft
