// SPDX-License-Identifier: Apache-2.0
// The same work twice: shares copied out, computed and copied back by hand, and in one line.
#include "play.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/scatter.hpp"

#include <iostream>
#include <numeric>
#include <span>
#include <vector>

WEFT_KERNEL(polynomial, (WEFT_IN(float) x, WEFT_OUT(float) y), { y[i] = (0.5f * x[i] - 3.0f) * x[i] + 1.0f; });

// By hand: which device gets what, where it lies there, and when all of it is back.
std::vector<float> by_hand(const weft::machine& m, const std::vector<float>& x) {
  std::vector<weft::buffer<float>> in, out;
  const std::vector<std::size_t> shares = weft::even_split(x.size(), m.devices().size());
  for (const weft::device& d : m.devices()) {
    in.emplace_back(d, shares[d.id().index()]);
    out.emplace_back(d, shares[d.id().index()]);
  }
  weft::scatter(std::span{in}, x);
  std::vector<weft::event> done;
  for (std::size_t d = 0; d < in.size(); ++d) {
    const auto count = static_cast<std::int64_t>(shares[d]);
    done.push_back(weft::launch<polynomial>(m.devices()[d].default_stream(), weft::range(count), in[d], out[d]));
  }
  for (const weft::event& e : done) e.wait();
  std::vector<float> y(x.size());
  weft::gather(y, std::span{out});
  return y;
}

// In one line. The shares follow what the devices can do, copies run beside kernels, and small work stays on one
// device.
std::vector<float> in_one_line(const weft::machine& m, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  weft::launch<polynomial>(m, weft::range(static_cast<std::int64_t>(x.size())), x, y).wait();
  return y;
}

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "ring_3_no_p2p");
  std::vector<float> x(1'000'003);  // divides by nothing
  std::iota(x.begin(), x.end(), 0.0F);
  const std::vector<float> one = by_hand(m, x), other = in_one_line(m, x);
  std::cout << m.device_count() << " devices, " << x.size() << " elements\n"
            << (one == other ? "both ways give the same bits\n" : "THE TWO WAYS DIFFER\n");
  return one == other ? 0 : 1;
}
