// SPDX-License-Identifier: Apache-2.0
// Everything that a program uses, in one include.
#pragma once

#include "weft/core/topology_analysis.hpp"
#include "weft/core/version.hpp"
#include "weft/exec/kernels.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/route.hpp"
#include "weft/memory/scatter.hpp"
#include "weft/runtime/barrier.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"
#include "weft/runtime/task.hpp"
