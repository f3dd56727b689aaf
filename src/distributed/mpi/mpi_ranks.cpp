// SPDX-License-Identifier: Apache-2.0
#include "distributed/mpi/mpi_ranks.hpp"

#include "core/errors/make_error.hpp"
#include "distributed/mpi/mpi_collectives.hpp"
#include "processes/packet_socket.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

namespace weft::detail::mpi {
namespace {

error failed(const library& calls, const char* doing, int how) {
  error cause =
      make_error(errc::closed, calls.name + " cannot " + doing + ": " + calls.text_of(how), error_scope::process);
  cause.native_code = how;
  return cause;
}

/// Waits for what all ranks take part in. What it works on has to stay when it fails: MPI cannot call it back.
result<void> finish(const library& calls, handle& request, const char* doing, wait_deadline until,
                    const std::stop_token& stop) {
  for (;;) {
    int is_over = 0;
    status unread;
    if (const int how = calls.test(&request, &is_over, &unread); how != success) return failed(calls, doing, how);
    if (is_over != 0) return {};
    if (stop.stop_requested())
      return make_error(errc::cancelled, calls.name + ": cancelled while it waited to " + doing);
    if (steady_now() >= until) {
      return make_error(errc::timed_out, calls.name + ": time is up while it waited for all ranks to " + doing);
    }
    std::this_thread::yield();
  }
}

/// Memory that MPI may go on to use for as long as the process lives.
template <class T>
class lent {
 public:
  explicit lent(T value) : held_(std::make_unique<T>(std::move(value))) {}
  ~lent() {
    if (!is_out_) return;
    T* const forgotten = held_.release();
    static_cast<void>(forgotten);
  }
  lent(const lent&) = delete;
  lent& operator=(const lent&) = delete;
  T& operator*() { return *held_; }
  T* operator->() { return held_.get(); }
  void goes_out() { is_out_ = true; }
  void is_back() { is_out_ = false; }

 private:
  std::unique_ptr<T> held_;
  bool is_out_ = false;
};

class messages final : public engine {
 public:
  explicit messages(std::shared_ptr<ranks> of)
      : of_(std::move(of)),
        calls_(of_->calls()),
        name_("mpi: " + calls_.name),
        failures_(static_cast<std::size_t>(of_->size())) {}

  ~messages() override {
    // What was sent leaves, for a second at most; what does not is MPI's for ever.
    const auto until = steady_now() + std::chrono::seconds{1};
    const auto is_at_work = [this] {
      return !flying_.empty() || std::ranges::any_of(*groups_, [](const auto& one) { return !one->is_settled(); });
    };
    while (is_open() && is_at_work() && steady_now() < until) progress();
    for (auto& one : flying_) {
      flight* const forgotten = one.release();
      static_cast<void>(forgotten);
    }
    free_groups(true);
    if (!is_open() || groups_->empty()) return;
    auto* const forgotten = groups_.release();  // MPI goes on with what it has not finished
    static_cast<void>(forgotten);
  }

  const std::string& name() const noexcept override { return name_; }
  result<std::vector<std::byte>> address() override { return std::vector<std::byte>{}; }
  void introduce(std::vector<std::vector<std::byte>>) override {}

  void send(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) override {
    if (!may_go(t, tag, bytes.size())) return;
    auto made = std::make_unique<flight>();
    made->of = &t;
    made->copy.assign(bytes.begin(), bytes.end());
    start(std::move(made), calls_.isend, to, tag);
  }

  void receive(transfer& t, int from, message_tag tag, std::span<std::byte> into) override {
    // One more byte than wanted tells a longer message from one that fits; by an error of MPI it could not be told
    // apart.
    if (!may_go(t, tag, into.size())) return;
    auto made = std::make_unique<flight>();
    made->of = &t;
    made->into = into;
    made->copy.resize(into.size() + 1);
    start(std::move(made), calls_.irecv, from, tag);
  }

  void receive_any(transfer& t, message_tag tag, std::span<std::byte> into) override {
    receive(t, calls_.any_source, tag, into);
  }

  void cancel(transfer& t, int rank) override {
    auto* const own = static_cast<flight*>(t.native);
    if (!t.is_under_way() || own == nullptr) return;
    if (own->receives) {
      // one that a message has met goes on, for as long as its sender likes
      constexpr int most_looks = 1000;
      calls_.cancel(&own->request);
      for (int n = 0; n < most_looks && t.is_under_way() && is_open(); ++n) progress();
      if (!t.is_under_way()) return;
    }
    own->of = nullptr;  // MPI goes on with the copy
    auto& failure = failures_[static_cast<std::size_t>(rank)];
    if (failure.empty()) failure = own->receives ? "a message of it was given up" : "a message to it was given up";
    t.native = nullptr;
    t.end(transfer::stage::cancelled);
  }

  void withdraw(transfer& t) override {
    auto* const own = static_cast<flight*>(t.native);
    if (t.is_under_way() && own != nullptr && own->receives) calls_.cancel(&own->request);
  }

  std::shared_ptr<engine_group> all_ranks() override {
    if (!is_open()) return nullptr;
    free_groups(false);
    groups_->reserve(groups_->size() + 1);  // before MPI begins
    groups_->push_back(std::make_shared<collective_group>(calls_, of_->own_comm(), of_));
    return groups_->back();
  }
  bool is_settled(engine_group& of) override { return static_cast<collective_group&>(of).is_settled(); }

  void start(transfer& t, const std::shared_ptr<engine_group>& of, const engine_call& call) override {
    if (!is_open()) return fail(t, "MPI has been finalized");
    auto made = std::make_unique<flight>();
    made->of = &t;
    made->into = call.out;
    made->work = std::make_unique<collective_work>(std::static_pointer_cast<collective_group>(of), call);
    flying_.push_back(std::move(made));
    t.native = flying_.back().get();
    progress();
  }

  void forget(transfer& t) override {
    auto* const own = static_cast<flight*>(t.native);
    if (!t.is_under_way() || own == nullptr) return;
    own->of = nullptr;
    t.native = nullptr;
    t.end(transfer::stage::cancelled);
  }

  const std::string* failure(int rank) const noexcept override {
    const std::string& why = failures_[static_cast<std::size_t>(rank)];
    return why.empty() ? nullptr : &why;
  }

  std::string transport_to(int) const override { return {}; }

  bool progress() override {
    bool moved = false;
    if ((flying_.empty() && groups_->empty()) || !is_open()) return false;
    for (const auto& one : *groups_) static_cast<void>(one->is_settled());
    for (std::size_t n = 0; n < flying_.size();) {
      int is_over = 0;
      status how_many;
      flight& f = *flying_[n];
      int how = success;
      if (f.work && !f.work->has_begun) {  // its communicator comes first
        if (f.work->group->is_settled()) {
          how = f.work->group->began();
          if (how == success) how = f.work->begin(calls_, &f.request);
        }
      }
      if (how == success && (!f.work || f.work->has_begun)) how = calls_.test(&f.request, &is_over, &how_many);
      if (how == success && is_over == 0) {
        ++n;
        continue;
      }
      moved = true;
      const std::unique_ptr<flight> ended = std::move(flying_[n]);
      flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(n));
      if (ended->of != nullptr) land(*ended, how, how_many);
    }
    return moved;
  }
  int wake_file() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }

 private:
  struct flight {
    transfer* of = nullptr;  // null: given up
    handle request = 0;
    std::vector<std::byte> copy;
    std::span<std::byte> into;
    std::unique_ptr<collective_work> work;
    bool receives = false;
  };

  bool is_open() const {
    int is_over = 0;
    calls_.finalized(&is_over);
    return is_over == 0;
  }

  static void fail(transfer& t, std::string why) {
    t.why = std::move(why);
    t.native = nullptr;
    t.end(transfer::stage::failed);
  }

  bool may_go(transfer& t, message_tag tag, std::size_t size) const {
    if (!is_open()) {
      fail(t, "MPI has been finalized");
    } else if (tag.number > message_tag::most_own) {
      fail(t, "MPI grants tags to " + std::to_string(message_tag::most_own));
    } else if (size >= INT_MAX) {
      fail(t, "MPI counts bytes in an int: a message has less than 2 GiB");
    }
    return t.is_under_way();
  }

  template <class Call>
  void start(std::unique_ptr<flight> f, Call call, int rank, message_tag tag) {
    f->receives = std::is_same_v<Call, decltype(calls_.irecv)>;
    const int how = call(f->copy.data(), static_cast<int>(f->copy.size()), calls_.byte, rank,
                         static_cast<int>(tag.number), tag.is_own ? of_->own_comm() : of_->comm(), &f->request);
    if (how != success) return fail(*f->of, calls_.text_of(how));
    f->of->native = f.get();
    flying_.push_back(std::move(f));
    progress();
  }

  /// Of communicators of ours that have gone; of all before MPI_Finalize. Ranks do not do so in one order: freeing
  /// waits for nobody in Open MPI and MPICH.
  void free_groups(bool all) {
    std::erase_if(*groups_, [&](const auto& one) {
      if (!is_open() || !one->is_settled() || (!all && one.use_count() > 1)) return false;
      one->free();
      return true;
    });
  }

  void land(flight& f, int how, const status& what) {
    transfer& t = *f.of;
    t.native = nullptr;
    int is_cancelled = 0;
    if (how == success && !f.work) calls_.test_cancelled(&what, &is_cancelled);
    if (is_cancelled != 0) {
      t.end(transfer::stage::cancelled);
      return;
    }
    if (how != success) return fail(t, calls_.text_of(how));
    if (f.work) std::copy_n(f.work->result().begin(), f.into.size(), f.into.begin());
    if (f.receives) {
      int count = 0;
      calls_.get_count(&what, calls_.byte, &count);
      t.bytes = static_cast<std::size_t>(count);
      if (t.bytes > f.into.size()) return fail(t, "the message is longer than the memory for it");
      std::copy_n(f.copy.begin(), t.bytes, f.into.begin());
    }
    t.end(transfer::stage::done);
  }

  std::shared_ptr<ranks> of_;
  const library& calls_;
  std::string name_;
  std::vector<std::string> failures_;
  std::vector<std::unique_ptr<flight>> flying_;
  using group_list = std::vector<std::shared_ptr<collective_group>>;
  std::unique_ptr<group_list> groups_ = std::make_unique<group_list>();
};

}  // namespace

result<std::shared_ptr<ranks>> ranks::of(const void* communicator, wait_deadline until, const std::stop_token& stop) {
  const auto calls = running();
  if (!calls) return calls.error();
  const library& l = **calls;
  handle from = l.world;
  if (communicator != nullptr) {
    from = 0;
    std::memcpy(&from, communicator, l.handle_bytes);
  }
  std::array<handle, 2> copies{};
  for (handle& copy : copies) {
    lent<std::pair<handle, handle>> made{{0, 0}};  // communicator, request
    if (const int how = l.comm_idup(from, &made->first, &made->second); how != success)
      return failed(l, "copy the communicator", how);
    made.goes_out();
    if (auto met = finish(l, made->second, "copy the communicator", until, stop); !met) return std::move(met).error();
    made.is_back();
    copy = made->first;
    l.comm_set_errhandler(copy, l.errors_return);
  }
  return std::make_shared<ranks>(l, copies[0], copies[1]);
}

ranks::~ranks() {
  int is_over = 0;
  calls_.finalized(&is_over);
  if (is_over != 0) return;
  calls_.comm_free(&comm_);
  calls_.comm_free(&own_comm_);
}

int ranks::self() const {
  int value = -1;
  calls_.comm_rank(comm_, &value);
  return value;
}

bool ranks::takes_any_thread() const {
  int level = 0;
  return calls_.query_thread(&level) == success && level >= calls_.thread_multiple;
}

int ranks::size() const {
  int value = 0;
  calls_.comm_size(comm_, &value);
  return value;
}

result<std::vector<std::vector<std::byte>>> ranks::all_gather(std::span<const std::byte> mine, wait_deadline until,
                                                              const std::stop_token& stop) const {
  struct parts {
    std::vector<std::byte> mine;
    std::vector<std::byte> all;
    handle request = 0;
  };
  const auto count = static_cast<std::size_t>(size());
  const auto gather = [&](std::span<const std::byte> part) -> result<std::vector<std::byte>> {
    lent<parts> p{{{part.begin(), part.end()}, std::vector<std::byte>(count * part.size()), 0}};
    const auto each = static_cast<int>(part.size());
    const int how =
        calls_.iallgather(p->mine.data(), each, calls_.byte, p->all.data(), each, calls_.byte, comm_, &p->request);
    if (how != success) return failed(calls_, "gather", how);
    p.goes_out();
    if (auto met = finish(calls_, p->request, "gather", until, stop); !met) return std::move(met).error();
    p.is_back();
    return std::move(p->all);
  };
  const auto own = static_cast<std::uint64_t>(mine.size());
  auto sizes = gather(std::as_bytes(std::span{&own, 1}));
  if (!sizes) return std::move(sizes).error();
  std::vector<std::uint64_t> lengths(count);
  std::memcpy(lengths.data(), sizes->data(), sizes->size());
  const std::uint64_t longest = *std::ranges::max_element(lengths);
  if (longest > std::uint64_t{1} << 20U)
    return make_error(errc::corrupt, calls_.name + ": a rank wants to say " + std::to_string(longest) + " bytes");
  std::vector<std::byte> padded{mine.begin(), mine.end()};
  padded.resize(longest);
  auto said = gather(padded);
  if (!said) return std::move(said).error();
  std::vector<std::vector<std::byte>> all;
  for (std::size_t r = 0; r < count; ++r) {
    const auto from = said->begin() + static_cast<std::ptrdiff_t>(r * longest);
    all.emplace_back(from, from + static_cast<std::ptrdiff_t>(lengths[r]));
  }
  return all;
}

std::unique_ptr<engine> open_messages(std::shared_ptr<ranks> of) { return std::make_unique<messages>(std::move(of)); }

}  // namespace weft::detail::mpi
