// SPDX-License-Identifier: Apache-2.0
// Laplace's equation on a grid that is divided by rows over the devices of a machine. In each step a device needs one
// row of each neighbour, its halo. It comes in one of three ways: the kernel that computes the row stores it in the
// neighbour's memory too; the row is copied; or a kernel sends it as a message, and a kernel there receives it. The
// rows between are computed meanwhile. All three give the bits of a plain loop.
//
// Several processes, of one node or more, share the grid band by band in the order of ranks. Each uses its share of its
// node's devices, and the rows at its bounds are messages to the ranks beside it, whatever the way inside.
//
// usage: jacobi [topology] [--trace]; or as processes of torchrun, mpirun or a shell:
//   export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//   RANK=1 ./jacobi & RANK=0 ./jacobi
// With --trace it writes jacobi_copies.json and the like for Perfetto or `weft trace view`; where devices are played,
// of a second run on a virtual clock. There a copy takes the time of its links beside kernels, so that copies and the
// rows between are seen at once. Stores and messages take no virtual time, and kernels of a device run one after the
// other: of these two ways the trace shows the order, and only one of GPUs can show what they hide.
#include "play.hpp"
#include "ranks.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/world_queue.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/profile/profiler.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

constexpr std::int64_t width = 512;  // the kernels that send and receive have it in their text
constexpr std::int64_t height = 514;
constexpr int steps = 60;
constexpr int steps_per_residual = 20;
constexpr std::uint64_t polls = 2'000'000'000;  // minutes: a kernel that waits for a message in vain comes back

// Computes rows from the same rows and one more on either side.
WEFT_KERNEL_2D(relax, (WEFT_IN(float, whole) from, WEFT_OUT(float) to, int64_t w), {
  int64_t at = (y + 1) * w + x;
  int fixed = x == 0 || x == w - 1;
  to[y * w + x] = fixed ? from[at] : 0.25f * ((from[at - w] + from[at + w]) + (from[at - 1] + from[at + 1]));
});
// The same for one row, which is stored in a neighbour's halo too.
WEFT_KERNEL(relax_and_store, (WEFT_IN(float, whole) from, WEFT_OUT(float) to, WEFT_OUT(float) halo, int64_t w), {
  int64_t at = w + i;
  int fixed = i == 0 || i == w - 1;
  float made = fixed ? from[at] : 0.25f * ((from[at - w] + from[at + w]) + (from[at - 1] + from[at + 1]));
  to[i] = made;
  halo[i] = made;
});
WEFT_KERNEL(send_row, (WEFT_IN(float, whole) row, WEFT_RING out, uint64_t most), {
  float message[512];
  for (int k = 0; k < 512; ++k) message[k] = row[k];
  weft_ring_send(out, message, most);
});
// What does not arrive leaves the old row, and the bits of the result tell.
WEFT_KERNEL(receive_row, (WEFT_RING in, uint64_t most, WEFT_INOUT(float, whole) row), {
  float message[512];
  if (weft_ring_receive(in, message, most) != WEFT_RING_OK) return;
  for (int k = 0; k < 512; ++k) row[k] = message[k];
});
// A row at a time, from left to right: a sum whose bits do not depend on how the rows are divided.
WEFT_KERNEL(row_change, (WEFT_IN(float, whole) from, WEFT_IN(float, whole) to, WEFT_OUT(double) change, int64_t w), {
  double sum = 0;
  for (int64_t x = 0; x < w; ++x) sum += weft_fabs((double)to[i * w + x] - (double)from[i * w + x]);
  change[i] = sum;
});

using row_message = std::array<float, width>;
enum class way : std::uint8_t { stores, copies, queues };
constexpr const char* name_of[] = {"stores", "copies", "queues"};

std::size_t elements(std::int64_t rows) { return static_cast<std::size_t>(rows * width); }

struct solution {
  std::vector<float> grid = std::vector<float>(elements(height));
  std::vector<double> residuals;
  std::int64_t first = 0, end = height;

  solution() {
    for (std::size_t x = 0; x < width; ++x) grid[x] = 1.0F + static_cast<float>(x % 7) / 8;  // the hot edge
  }
  /// In the residuals, and in the rows that this process has.
  bool has_bits_of(const solution& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return same(rows_of(grid), rows_of(other.grid)) && same(residuals, other.residuals);
  }
  [[nodiscard]] std::span<const float> rows_of(const std::vector<float>& of) const {
    return std::span{of}.subspan(elements(first), elements(end - first));
  }
};

solution plain_loop() {
  solution made;
  std::vector<float> next = made.grid;
  for (int step = 1; step <= steps; ++step) {
    const std::vector<float>& g = made.grid;
    double change = 0;
    for (std::size_t y = 1; y + 1 < height; ++y) {
      double of_row = 0;
      for (std::size_t x = 0; x < width; ++x) {
        const std::size_t at = y * width + x;
        const bool fixed = x == 0 || x == width - 1;
        next[at] = fixed ? g[at] : 0.25F * ((g[at - width] + g[at + width]) + (g[at - 1] + g[at + 1]));
        of_row += std::fabs(static_cast<double>(next[at]) - static_cast<double>(g[at]));
      }
      change += of_row;
    }
    std::swap(made.grid, next);
    if (step % steps_per_residual == 0) made.residuals.push_back(change);
  }
  return made;
}

/// The process that has the band above or below this one's.
class neighbour {
 public:
  neighbour(const weft::world& all, weft::rank other)
      : rows_(weft::connect_both<row_message>(all, other, 0)), numbers_(weft::connect_both<double>(all, other, 1)) {}

  void send(const row_message& row) { must(rows_.first, rows_.first.send(row)); }
  void receive(row_message& row) { must(rows_.second, rows_.second.receive(row)); }
  void tell(double number) { must(numbers_.first, numbers_.first.send(number)); }
  double hear() {
    double number = 0;
    must(numbers_.second, numbers_.second.receive(number));
    return number;
  }

 private:
  /// A neighbour that has died ends each wait.
  static void must(const auto& end, weft::queue_status came) {
    if (came == weft::queue_status::ok) return;
    if (const auto failed = end.failure()) weft::raise(*failed);
    weft::raise(weft::errc::closed, "a neighbour has left");
  }

  std::pair<weft::sender<row_message>, weft::receiver<row_message>> rows_;
  std::pair<weft::sender<double>, weft::receiver<double>> numbers_;
};

/// This process among those that share the grid: its devices, and how many there are above them and in all.
struct band {
  std::vector<weft::device> mine;
  std::int64_t devices_above = 0, devices = 0;
  std::optional<neighbour> above{}, below{};

  explicit band(const weft::machine& m) : mine(m.devices()), devices(m.device_count()) {}
  band(const weft::machine& m, const weft::world& all) {
    // where n processes are on a node, each has every n-th device
    const weft::world_member& self = all.member(all.self());
    for (int d = self.local.value(); d < m.device_count(); d += static_cast<int>(all.ranks_of(self.node).size()))
      mine.push_back(m[d]);
    if (mine.empty()) weft::raise(weft::errc::invalid_argument, "no device is left for " + to_string(self));
    if (const int r = self.rank.value(); r > 0) above.emplace(all, weft::rank{r - 1});
    if (const int r = self.rank.value(); r + 1 < all.size()) below.emplace(all, weft::rank{r + 1});
    devices = static_cast<std::int64_t>(in_turn([&](double before) {
      devices_above = static_cast<std::int64_t>(before);
      return before + static_cast<double>(mine.size());
    }));
  }
  /// A number that each process changes in turn, from the first band to the last: what comes out, for all.
  template <class F>
  double in_turn(F change) {
    double number = change(above ? above->hear() : 0.0);
    if (below) below->tell(number), number = below->hear();
    if (above) above->tell(number);
    return number;
  }
};

/// The rows of a device's edge on their way to another process, and those that came from it.
struct far_side {
  neighbour* to;
  std::int64_t edge, own_halo;  // as of a side
  row_message out{}, in{};
  weft::event read{}, written{};
};

/// A neighbour in this process, and the way there and back.
struct side {
  std::size_t peer;
  std::int64_t edge;  // the row that goes there, and what becomes of it
  std::int64_t halo;  // there: the row where it arrives
  std::int64_t own_halo;
  std::array<weft::peer_mapping<float>, 2> mapped{};  // stores: that row of either grid, as this device reaches it
  std::optional<weft::sender<row_message>> tx{};      // queues
  std::optional<weft::receiver<row_message>> rx{};
  std::optional<weft::kernel_end> out{}, in{};
  weft::event sent{};
};

/// The rows of a device and one of each neighbour around them, twice: one grid is read, the other written.
struct part {
  part(const weft::device& on, std::int64_t first_row, std::int64_t count)
      : first(first_row),
        rows(count),
        edge(on),
        inner(on),
        grids{weft::buffer<float>{on, elements(count + 2)}, weft::buffer<float>{on, elements(count + 2)}},
        change(on, static_cast<std::size_t>(count)) {}

  [[nodiscard]] weft::device_span<float> at(std::size_t grid, std::int64_t row, std::int64_t count = 1) const {
    return grids[grid].subspan(elements(row), elements(count));
  }

  std::int64_t first, rows;
  weft::stream edge, inner;
  std::array<weft::buffer<float>, 2> grids;
  weft::buffer<double> change;
  std::vector<side> sides;
  std::vector<far_side> far_sides;
  weft::event edges_done, inner_done, exchanged;  // of the last step
};

class solver {
 public:
  solver(const weft::machine& m, band& here, way how) : how_(how), band_(here), peers_(weft::enable_all_peers(m)) {
    const auto row_of = [&](std::int64_t d) { return 1 + (height - 2) * d / here.devices; };
    for (const weft::device& on : here.mine) {
      const std::int64_t d = here.devices_above + static_cast<std::int64_t>(parts_.size());
      const std::int64_t first = row_of(d), end = row_of(d + 1);
      const part& p = parts_.emplace_back(on, first, end - first);
      for (const auto& grid : p.grids)
        weft::copy(grid, std::span<const float>{made_.grid}.subspan(elements(first - 1), elements(end - first + 2)));
    }
    part &top = parts_.front(), &bottom = parts_.back();
    if (here.above) made_.first = top.first, top.far_sides.push_back({&*here.above, 1, 0});
    if (here.below) {
      made_.end = bottom.first + bottom.rows;
      bottom.far_sides.push_back({&*here.below, bottom.rows, bottom.rows + 1});
    }
    for (std::size_t d = 0; d + 1 < parts_.size(); ++d) {
      part &upper = parts_[d], &lower = parts_[d + 1];
      upper.sides.push_back({.peer = d + 1, .edge = upper.rows, .halo = 0, .own_halo = upper.rows + 1});
      lower.sides.push_back({.peer = d, .edge = 1, .halo = upper.rows + 1, .own_halo = 0});
    }
    for (part& p : parts_) {
      for (side& s : p.sides) connect(m, p, s);
    }
    together_ = m.clock() == weft::clock_kind::wall;
    for (const part& p : parts_) {
      together_ = together_ && p.edge.on().kind() != weft::backend_kind::opencl;
      for (const side& s : p.sides)
        together_ = together_ && (!s.in || s.in->visibility() == weft::ring_visibility::immediate);
    }
  }

  solution solve() {
    for (int step = 1; step <= steps; ++step) {
      from_ = static_cast<std::size_t>((step - 1) % 2), to_ = 1 - from_;
      if (step > 1) order();
      for (part& p : parts_) compute(p);
      for (part& p : parts_) receive(p);
      exchange_with_others();
      if (step % steps_per_residual == 0) made_.residuals.push_back(residual());
    }
    for (const part& p : parts_)
      weft::copy(p.edge, std::span<float>{made_.grid}.subspan(elements(p.first), elements(p.rows)),
                 p.at(to_, 1, p.rows))
          .wait();
    return made_;
  }

 private:
  void connect(const weft::machine& m, part& p, side& s) {
    part& there = parts_[s.peer];
    const weft::device_id here = p.edge.on().id(), peer = there.edge.on().id();
    if (how_ == way::stores) {
      for (const std::size_t g : {0U, 1U}) s.mapped[g] = weft::peer_mapping<float>{m, there.at(g, s.halo), here};
    }
    if (how_ == way::queues) {
      const weft::message_queue<row_message> queue{m, here, peer, {.capacity = 16}};
      side& back = *std::ranges::find(there.sides, s.halo, &side::own_halo);
      s.out.emplace(s.tx.emplace(queue.open_sender()));
      back.in.emplace(back.rx.emplace(queue.open_receiver()));
    }
  }

  /// Edges wait for the exchange of the step before: for the rows that arrived, and for the readers of the halos that
  /// they replace. The rows between only need what their own device computed, and go on beside the exchange.
  void order() {
    for (part& p : parts_) {
      p.inner.wait(p.edges_done);
      p.edge.wait(p.inner_done);
      if (how_ == way::queues) continue;  // a message that is there is order enough
      for (const side& s : p.sides) p.edge.wait(parts_[s.peer].exchanged);
    }
  }

  void compute(part& p) {
    for (const std::int64_t row : {std::int64_t{1}, p.rows}) {
      const auto s = std::ranges::find(p.sides, row, &side::edge);
      if (how_ == way::stores && s != p.sides.end()) {
        weft::launch<relax_and_store>(p.edge, weft::range(width), p.at(from_, row - 1, 3), p.at(to_, row),
                                      s->mapped[to_].span(), width);
      } else {
        weft::launch<relax>(p.edge, weft::range(width, 1), p.at(from_, row - 1, 3), p.at(to_, row), width);
      }
    }
    p.edges_done = p.edge.record();
    for (side& s : p.sides) {
      if (how_ == way::copies) weft::copy(p.edge, parts_[s.peer].at(to_, s.halo), p.at(to_, s.edge));
      if (how_ == way::queues) {
        s.sent = weft::launch<send_row>(p.edge, weft::range(1), p.at(to_, s.edge), *s.out, polls);
      }
    }
    for (far_side& s : p.far_sides) s.read = weft::copy(p.edge, s.out, p.at(to_, s.edge));
    p.exchanged = p.edge.record();
    weft::launch<relax>(p.inner, weft::range(width, p.rows - 2), p.at(from_, 1, p.rows), p.at(to_, 2, p.rows - 2),
                        width);
    p.inner_done = p.inner.record();
  }

  void receive(part& p) {
    if (how_ != way::queues) return;
    for (side& s : p.sides) {
      // Where kernels do not see each other's messages while they run, or share a processor, as those of OpenCL here,
      // one has to end before the other begins.
      if (!together_) p.edge.wait(std::ranges::find(parts_[s.peer].sides, s.own_halo, &side::halo)->sent);
      weft::launch<receive_row>(p.edge, weft::range(1), *s.in, polls, p.at(to_, s.own_halo));
    }
  }

  /// While the devices compute the rows between.
  void exchange_with_others() {
    for (part& p : parts_) {
      for (far_side& s : p.far_sides) s.read.wait(), s.to->send(s.out);
    }
    for (part& p : parts_) {
      for (far_side& s : p.far_sides) {
        s.written.wait();  // the row of the step before has left this memory
        s.to->receive(s.in);
        s.written = weft::copy(p.edge, p.at(to_, s.own_halo), s.in);
      }
    }
  }

  double residual() {
    for (part& p : parts_) {
      p.inner.wait(p.edges_done);
      weft::launch<row_change>(p.inner, weft::range(p.rows), p.at(from_, 1, p.rows), p.at(to_, 1, p.rows), p.change,
                               width);
    }
    return band_.in_turn([this](double change) {
      for (part& p : parts_) {
        std::vector<double> rows(static_cast<std::size_t>(p.rows));
        weft::copy(p.inner, rows, p.change).wait();
        for (const double row : rows) change += row;
      }
      return change;
    });
  }

  way how_;
  band& band_;
  std::vector<weft::peer_access> peers_;
  std::vector<part> parts_;
  solution made_;
  std::size_t from_ = 0, to_ = 1;
  bool together_ = true;
};

/// The microseconds in which rows were copied to neighbours, and how many of them a device at an end of the copy spent
/// on its rows between.
std::array<double, 2> copying(const std::vector<weft::trace_record>& records) {
  std::array<double, 2> made{};
  for (const weft::trace_record& copy : records) {
    if (copy.kind != weft::trace_kind::copy || copy.bytes != sizeof(row_message)) continue;
    made[0] += std::chrono::duration<double, std::micro>(copy.ended - copy.started).count();
    const weft::device_id beside = copy.from == weft::device_id{} ? copy.to : copy.from;  // staged: one end is the host
    for (const weft::trace_record& one : records) {
      if (one.device != beside || one.name != "relax" || one.items <= width) continue;
      const auto both = std::min(one.ended, copy.ended) - std::max(one.started, copy.started);
      made[1] += std::chrono::duration<double, std::micro>(std::max(both, both.zero())).count();
    }
  }
  return made;
}

/// Again, with a trace: on a virtual clock where the devices are played.
bool trace(const weft::machine& m, way how, const solution& plain) {
  weft::machine_options options;
  options.machine = m.layout();
  options.clock = weft::clock_kind::virtual_time;
  const weft::machine traced = m[0].simulated() ? weft::machine{options} : m;
  band whole{traced};
  solver again{traced, whole, how};
  const weft::profiler watch{traced};
  const bool right = again.solve().has_bits_of(plain);
  const std::string file = std::string{"jacobi_"} + name_of[static_cast<std::size_t>(how)] + ".json";
  watch.write_chrome_trace(file);
  std::cout << "        " << file;
  if (how == way::copies) {
    const auto [all, hidden] = copying(watch.records());
    std::cout << std::fixed << std::setprecision(1) << ": " << all << " us of copies, " << hidden
              << " us of them beside the rows between"
              << (traced.clock() == weft::clock_kind::wall ? "" : " (simulated)");
  }
  std::cout << "\n";
  return right;
}

int show(const weft::machine& m, bool traces) {
  std::optional<weft::world> all;
  if (const auto place = examples::place_in_a_world()) all = weft::value_or_raise(weft::world::join(*place));
  band here = all ? band{m, *all} : band{m};
  std::ostringstream silent;
  std::ostream& out = here.above ? silent : std::cout;

  const solution plain = plain_loop();
  for (const double residual : plain.residuals) out << std::setprecision(17) << "residual " << residual << "\n";
  bool right = true;
  for (const way how : {way::stores, way::copies, way::queues}) {
    out << name_of[static_cast<std::size_t>(how)] << ": ";
    std::optional<solver> work;
    std::string absent = "another process cannot";
    try {
      work.emplace(m, here, how);
    } catch (const weft::error_exception& failed) {
      if (examples::exit_code_of(failed.cause()) != examples::exit_absent) throw;
      absent = failed.what();
    }
    if (here.in_turn([&](double cannot) { return cannot + (work ? 0 : 1); }) != 0) {
      out << "not here: " << absent << "\n";
      continue;
    }
    const bool mine = work->solve().has_bits_of(plain);
    const bool same = here.in_turn([&](double wrong) { return wrong + (mine ? 0 : 1); }) == 0;
    out << (same ? "the bits of a plain loop" : "OTHER BITS than a plain loop") << " on " << here.devices << " devices";
    if (all) out << ", " << all->size() << " processes, " << all->nodes() << (all->nodes() == 1 ? " node" : " nodes");
    out << "\n";
    right = right && same && (!traces || all || trace(m, how, plain));
  }
  return right ? 0 : 1;
}

int main(int argc, char** argv) {
  const bool traces = argc > 1 && std::string_view{argv[argc - 1]} == "--trace";
  return examples::run([&] { return show(examples::play(traces ? argc - 1 : argc, argv, "pcie_4"), traces); });
}
