/* SPDX-License-Identifier: Apache-2.0
 * The ring under every queue: one writer, one reader, messages of a fixed size. A C subset that is compiled as it
 * stands by g++, clang, nvcc, NVRTC, hipcc, HIPRTC and as OpenCL C 2.0: the lines that run on a device are the lines
 * that the thread sanitizer and the model checker see on the host.
 *
 * Every slot carries its lap stamp behind its payload, so that one cache line (one posted store) brings both. The
 * reader polls the slot it reads next, in its own memory; free space comes back as a *credit*, the number of messages
 * read, which the reader writes into the writer's memory a quarter of the ring at a time, and when it finds the ring
 * empty. Nothing is read across the link, nothing is exchanged or added atomically, and no word has two writers.
 *
 * Order: payload before stamp (release), stamp before payload (acquire); last read of a slot before credit (release),
 * credit before the slot is written again (acquire). docs/reference/queues.md has the argument.
 *
 * Three layouts. `slots`: payload, padding, 32-bit stamp. `packed`, for messages of up to 24 bytes: lines of 64 bytes
 * with several payloads and one word {line number, count}, published again with each message. `pieces`, for messages of
 * up to 48 bytes between a GPU and whoever it reaches by a link: 12 bytes of payload and the stamp, again and again,
 * each stored and loaded as one, so that nothing is read twice across the link and nothing is waited for in between.
 *
 * Where only commands reach the reader's memory, `tail` says what has arrived, and the slots' own stamps come after it.
 *
 * What the other side wrote is compared, never used as an index or a length: a position is always one's own.
 */
#ifndef WEFT_KERNEL_RING_H
#define WEFT_KERNEL_RING_H
/* NOLINTBEGIN(modernize-*): what C++ does better, the C of the devices does not know */

#if defined(WEFT_RING_PORT)
/* A test brings the words below itself. */

#elif defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
#if defined(WEFT_RING_BY_COMMANDS)
/* An image of the ring in a buffer, which commands bring before a launch and take back behind it. Nobody is at the
 * other side meanwhile: nothing is atomic, and a wait ends at its first look. Where the buffer lies is known to a
 * running kernel alone, so the words that are addresses elsewhere are distances from the end itself. */
#define WEFT_RING_LOAD_32(address) (*(volatile __global weft_uint32*)(address))
#define WEFT_RING_LOAD_64(address) (*(volatile __global weft_uint64*)(address))
#define WEFT_RING_STORE_32(address, value) (*(volatile __global weft_uint32*)(address) = (value))
#define WEFT_RING_STORE_64(address, value) (*(volatile __global weft_uint64*)(address) = (value))
#define WEFT_RING_AT(end, word) ((weft_uint64)(end) + (word))
#define WEFT_RING_LOOKS(polls) ((void)(polls), 0)
#else
/* Fine-grained shared memory with atomics. OpenCL C 2.0 has the widest scope always; a 3.0 compiler that does not know
 * it has one device only. */
#if defined(cl_khr_int64_base_atomics) && defined(cl_khr_int64_extended_atomics)
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#endif
#if (__OPENCL_C_VERSION__ < 300 || defined(__opencl_c_atomic_scope_all_devices)) && !defined(WEFT_RING_DEVICE_SCOPE)
#define WEFT_RING_SCOPE memory_scope_all_svm_devices
#else
#define WEFT_RING_SCOPE memory_scope_device
#endif
#define WEFT_RING_LOAD_32(address) \
  atomic_load_explicit((volatile __global atomic_uint*)(address), memory_order_acquire, WEFT_RING_SCOPE)
#define WEFT_RING_LOAD_64(address) \
  atomic_load_explicit((volatile __global atomic_ulong*)(address), memory_order_acquire, WEFT_RING_SCOPE)
#define WEFT_RING_STORE_32(address, value) \
  atomic_store_explicit((volatile __global atomic_uint*)(address), (value), memory_order_release, WEFT_RING_SCOPE)
#define WEFT_RING_STORE_64(address, value) \
  atomic_store_explicit((volatile __global atomic_ulong*)(address), (value), memory_order_release, WEFT_RING_SCOPE)
#endif
#define WEFT_RING_GLOBAL __global
#define WEFT_RING_FUNCTION static inline
#define WEFT_RING_KEEP_64(address, value) (*(address) = (value))
#define WEFT_RING_PAUSE()
#if defined(__clang__)
/* Where OpenCL C 3.0 has no generic address space a pointer without a word is private, and one macro cannot copy both
 * ways. */
typedef weft_uint32 __attribute__((may_alias)) weft_ring_word;
static inline __attribute__((overloadable)) void weft_ring_copy(__global void* to, const void* from,
                                                                weft_uint32 bytes) {
  for (weft_uint32 at = 0; at < bytes / 4; ++at) {
    ((__global weft_ring_word*)to)[at] = ((const weft_ring_word*)from)[at];
  }
}
static inline __attribute__((overloadable)) void weft_ring_copy(void* to, const __global void* from,
                                                                weft_uint32 bytes) {
  for (weft_uint32 at = 0; at < bytes / 4; ++at) {
    ((weft_ring_word*)to)[at] = ((const __global weft_ring_word*)from)[at];
  }
}
#define WEFT_RING_COPY(to, from, bytes) weft_ring_copy((to), (from), (bytes))
#endif

#elif defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define WEFT_RING_GLOBAL
#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define WEFT_RING_FUNCTION static __device__ __forceinline__
#define WEFT_RING_FUNCTION_APART static __device__ __noinline__ __attribute__((unused))
#else
#define WEFT_RING_FUNCTION static __host__ __device__ __forceinline__
#define WEFT_RING_FUNCTION_APART static __host__ __device__ __noinline__ __attribute__((unused))
typedef unsigned char weft_uint8;
typedef unsigned int weft_uint32;
typedef unsigned long long weft_uint64;
#endif
#if defined(__CUDA_ARCH__)
static __device__ __forceinline__ weft_uint32 weft_ring_load_32(const void* address) {
  weft_uint32 value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
static __device__ __forceinline__ weft_uint64 weft_ring_load_64(const void* address) {
  weft_uint64 value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
static __device__ __forceinline__ void weft_ring_store_32(void* address, weft_uint32 value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
static __device__ __forceinline__ void weft_ring_store_64(void* address, weft_uint64 value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
#if defined(__clang__) && !defined(__CUDACC_RTC__)
/* clang looks at bodies of the host's functions while it compiles for the device, too. */
static __host__ __forceinline__ weft_uint32 weft_ring_load_32(const void* address) {
  return __atomic_load_n((const weft_uint32*)address, __ATOMIC_ACQUIRE);
}
static __host__ __forceinline__ weft_uint64 weft_ring_load_64(const void* address) {
  return __atomic_load_n((const weft_uint64*)address, __ATOMIC_ACQUIRE);
}
static __host__ __forceinline__ void weft_ring_store_32(void* address, weft_uint32 value) {
  __atomic_store_n((weft_uint32*)address, value, __ATOMIC_RELEASE);
}
static __host__ __forceinline__ void weft_ring_store_64(void* address, weft_uint64 value) {
  __atomic_store_n((weft_uint64*)address, value, __ATOMIC_RELEASE);
}
#endif
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1203 && !defined(__clang__)
/* Accesses of 16 bytes as one: PTX 8.3, sm_70. The two halves, the stamp in the upper four bytes of the second. */
#define WEFT_RING_WHOLE_PIECES
static __device__ __forceinline__ void weft_ring_store_piece(void* address, weft_uint64 low, weft_uint64 high,
                                                             int releases) {
  if (releases) {
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.release.sys.b128 [%0], v; }" ::"l"(address), "l"(low),
                 "l"(high)
                 : "memory");
  } else {
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.b128 [%0], v; }" ::"l"(address), "l"(low),
                 "l"(high)
                 : "memory");
  }
}
static __device__ __forceinline__ void weft_ring_load_piece(const void* address, weft_uint64* low, weft_uint64* high,
                                                            int acquires) {
  if (acquires) {
    asm volatile("{ .reg .b128 v; ld.acquire.sys.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(*low), "=l"(*high)
                 : "l"(address)
                 : "memory");
  } else {
    asm volatile("{ .reg .b128 v; ld.relaxed.sys.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(*low), "=l"(*high)
                 : "l"(address)
                 : "memory");
  }
}
#endif
#define WEFT_RING_LOAD_32(address) weft_ring_load_32(address)
#define WEFT_RING_LOAD_64(address) weft_ring_load_64(address)
#define WEFT_RING_STORE_32(address, value) weft_ring_store_32((address), (value))
#define WEFT_RING_STORE_64(address, value) weft_ring_store_64((address), (value))
#elif defined(__HIP_DEVICE_COMPILE__)
#define WEFT_RING_LOAD_32(address) __hip_atomic_load((address), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)
#define WEFT_RING_LOAD_64(address) __hip_atomic_load((address), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)
#define WEFT_RING_STORE_32(address, value) \
  __hip_atomic_store((address), (value), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM)
#define WEFT_RING_STORE_64(address, value) \
  __hip_atomic_store((address), (value), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM)
#else
#define WEFT_RING_LOAD_32(address) __atomic_load_n((address), __ATOMIC_ACQUIRE)
#define WEFT_RING_LOAD_64(address) __atomic_load_n((address), __ATOMIC_ACQUIRE)
#define WEFT_RING_STORE_32(address, value) __atomic_store_n((address), (value), __ATOMIC_RELEASE)
#define WEFT_RING_STORE_64(address, value) __atomic_store_n((address), (value), __ATOMIC_RELEASE)
#endif
#define WEFT_RING_KEEP_64(address, value) (*(volatile weft_uint64*)(address) = (value))
#define WEFT_RING_PAUSE()

#else /* the host */
#include <cstdint>
#include <cstring>
typedef std::uint8_t weft_uint8;
typedef std::uint32_t weft_uint32;
typedef std::uint64_t weft_uint64;
#define WEFT_RING_GLOBAL
#define WEFT_RING_FUNCTION [[gnu::always_inline]] inline
#define WEFT_RING_LOAD_32(address) __atomic_load_n((address), __ATOMIC_ACQUIRE)
#define WEFT_RING_LOAD_64(address) __atomic_load_n((address), __ATOMIC_ACQUIRE)
#define WEFT_RING_STORE_32(address, value) __atomic_store_n((address), (value), __ATOMIC_RELEASE)
#define WEFT_RING_STORE_64(address, value) __atomic_store_n((address), (value), __ATOMIC_RELEASE)
#define WEFT_RING_KEEP_64(address, value) __atomic_store_n((address), (value), __ATOMIC_RELAXED)
#define WEFT_RING_COPY(to, from, bytes) weft_ring_copy((to), (from), (bytes))
/* g++ would inline `rep movsq` above two lines, whose start costs a round trip of 256 bytes an eighth, and which is 1.2
 * times slower than the C library at 4 KiB. So four lines are spelled out, and more is the C library's. */
#if defined(__clang__)
[[gnu::noinline]]
#else
[[gnu::noipa]]
#endif
inline void weft_ring_copy_far(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
[[gnu::always_inline]] inline void weft_ring_copy(void* to, const void* from, std::size_t bytes) {
  if (__builtin_constant_p(bytes) && bytes <= 128) {
    std::memcpy(to, from, bytes);
  } else if (__builtin_constant_p(bytes) && bytes <= 256) {
    std::memcpy(to, from, 128);
    std::memcpy(static_cast<char*>(to) + 128, static_cast<const char*>(from) + 128, bytes - 128);
  } else {
    weft_ring_copy_far(to, from, bytes);
  }
}
/* What a piece has of a message: whole words, but in tests. */
[[gnu::always_inline]] inline void weft_ring_copy_piece(void* to, const void* from, std::size_t bytes) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (bytes == 8) {
    std::memcpy(to, from, 8);
  } else if (bytes == 12) {
    std::memcpy(to, from, 12);
  } else {
    weft_ring_copy_far(to, from, bytes);
  }
}
#define WEFT_RING_COPY_PIECE(to, from, bytes) weft_ring_copy_piece((to), (from), (bytes))
/* Asks for the lines of a slot, to write them, before the copy does: the stores of a copy wait for one line after
 * another, these do not. No more than 16 lines, about what a core asks for at a time. */
[[gnu::always_inline]] inline void weft_ring_claim(const void* slot, std::size_t bytes) {
  const auto* line = static_cast<const unsigned char*>(slot);
  const std::size_t most = bytes < 1024 ? bytes : 1024;
#if defined(__x86_64__)
  for (std::size_t at = 0; at < most; at += 64) asm volatile("prefetchw %0" ::"m"(line[at]));
#else
  for (std::size_t at = 0; at < most; at += 64) __builtin_prefetch(line + at, 1);
#endif
}
#define WEFT_RING_CLAIM(slot, bytes) weft_ring_claim((slot), (bytes))
#if defined(__x86_64__)
#define WEFT_RING_PAUSE() __builtin_ia32_pause()
#else
#define WEFT_RING_PAUSE()
#endif
#endif

/* On a device a message is a whole number of 4 bytes; the host rounds its size up. The words may alias what the body of
 * a kernel takes the message for. */
#ifndef WEFT_RING_COPY
typedef weft_uint32 __attribute__((may_alias)) weft_ring_word;
#define WEFT_RING_COPY(to, from, bytes)                                          \
  for (weft_uint32 weft_at = 0; weft_at < (bytes) / 4; ++weft_at) {              \
    ((weft_ring_word*)(to))[weft_at] = ((const weft_ring_word*)(from))[weft_at]; \
  }
/* A received message may lie across a bus, where a read takes a microsecond, and a read behind a write to what may be
 * the same memory waits for the read before it: so 128 bytes are read before the first is written. A function of its
 * own: the compilers of NVIDIA take seconds to minutes for a kernel that has this in several places. */
WEFT_RING_FUNCTION_APART void weft_ring_fetch(void* to, const void* from, weft_uint32 bytes) {
  weft_ring_word* into = (weft_ring_word*)to;
  const weft_ring_word* out_of = (const weft_ring_word*)from;
  weft_uint32 left = bytes / 4;
  weft_uint32 held[32];
  for (; left >= 32; left -= 32, into += 32, out_of += 32) {
    for (int k = 0; k < 32; ++k) held[k] = out_of[k];
    for (int k = 0; k < 32; ++k) into[k] = held[k];
  }
  WEFT_RING_COPY(into, out_of, 4 * left)
}
#define WEFT_RING_FETCH(to, from, bytes) weft_ring_fetch((to), (from), (bytes))
#endif

#ifndef WEFT_RING_FETCH
#define WEFT_RING_FETCH(to, from, bytes) WEFT_RING_COPY(to, from, bytes)
#endif

#ifndef WEFT_RING_COPY_PIECE
#define WEFT_RING_COPY_PIECE(to, from, bytes) WEFT_RING_COPY(to, from, bytes)
#endif

#ifndef WEFT_RING_CLAIM
#define WEFT_RING_CLAIM(slot, bytes)
#endif

#ifndef WEFT_RING_ATOMIC_32
#define WEFT_RING_ATOMIC_32 weft_uint32
#define WEFT_RING_ATOMIC_64 weft_uint64
#endif

/* What an end knows of where the ring lies: addresses, but for a port that says otherwise. */
#ifndef WEFT_RING_AT
#define WEFT_RING_AT(end, word) (word)
#endif
#define WEFT_RING_SLOTS(end) ((WEFT_RING_GLOBAL weft_uint8*)WEFT_RING_AT((end), (end)->slots))
#define WEFT_RING_WORD_32(end, word) ((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)WEFT_RING_AT((end), (end)->word))
#define WEFT_RING_WORD_64(end, word) ((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_64*)WEFT_RING_AT((end), (end)->word))

/* How often a wait looks again. */
#ifndef WEFT_RING_LOOKS
#define WEFT_RING_LOOKS(polls) (polls)
#endif

/* What a call came to. */
#define WEFT_RING_OK 0
#define WEFT_RING_FULL 1    /* send: no slot is free */
#define WEFT_RING_EMPTY 2   /* receive: nothing is there */
#define WEFT_RING_CLOSED 3  /* the other end has closed, and everything it sent was received */
#define WEFT_RING_STOPPED 4 /* the host has stopped the queue */
#define WEFT_RING_CORRUPT 5 /* a word that the other end wrote cannot be */

#define WEFT_RING_OPEN 0xffffffffffffffffUL       /* `fin` of an end that has not closed */
#define WEFT_RING_CLOSED_BIT 0x8000000000000000UL /* in the credit: the reader has closed */
#define WEFT_RING_LINE 64
#define WEFT_RING_LINE_PAYLOAD 56
#define WEFT_RING_PIECE 16
#define WEFT_RING_PIECE_PAYLOAD 12
#define WEFT_RING_MOST_PIECES 4

/* One end of a ring. Addresses are those of the device that uses it (WEFT_RING_BY_COMMANDS: distances from here). The
 * upper part is set when the end is opened, the lower part is the end's own: nobody else writes it, and a later kernel
 * goes on where an earlier one ended. */
typedef struct weft_ring {
  weft_uint64 slots;    /* in the reader's memory */
  weft_uint64 credit;   /* in the writer's memory: messages read; written by the reader */
  weft_uint64 fin;      /* in the reader's memory: messages sent when the writer closed; written by the writer */
  weft_uint64 stop;     /* 32 bits in this end's memory: not 0 once the host has stopped the queue */
  weft_uint64 mask;     /* slots or lines, a power of two, less one */
  weft_uint64 capacity; /* messages; packed: at most per_line times the lines less one */
  weft_uint32 shift;    /* log2 of the slots or lines */
  weft_uint32 bytes;    /* of a message */
  weft_uint32 stride;   /* of a slot; 0 in the packed layout */
  weft_uint32 per_line; /* messages in a line of the packed layout */

  weft_uint64 position;    /* messages sent or received by this end */
  weft_uint64 credit_seen; /* writer: the credit when it looked last; reader: the credit it gave last */
  weft_uint64 line;        /* packed: the line that is open */
  weft_uint32 index;       /* packed: messages done in it */
  weft_uint32 pieces;      /* of a slot; 0 in the other layouts */
  weft_uint64 waits;       /* times the ring was found full, or empty */
  weft_uint64 tail; /* reader, in its memory: messages that have arrived. 0: each slot says so by itself; else slots are
                       written by copies, in any order, and this word behind them */
} weft_ring;

/* ---- the writer -----------------------------------------------------------------------------------------------------
 */

/* Looks at the credit; WEFT_RING_OK when `wanted` messages fit. */
WEFT_RING_FUNCTION int weft_ring_look_for_space(WEFT_RING_GLOBAL weft_ring* end, weft_uint64 wanted) {
  const weft_uint64 credit = WEFT_RING_LOAD_64(WEFT_RING_WORD_64(end, credit));
  const weft_uint64 read = credit & ~WEFT_RING_CLOSED_BIT;
  if (read > end->position || read < end->credit_seen) return WEFT_RING_CORRUPT;
  if (credit != read) return WEFT_RING_CLOSED; /* and stays short of space, so that every later send comes here */
  end->credit_seen = read;
  return end->position - read + wanted <= end->capacity ? WEFT_RING_OK : WEFT_RING_FULL;
}

/* Why nothing was sent: the slow side of every send, never the cause of a delay when there is space. */
WEFT_RING_FUNCTION int weft_ring_no_space(WEFT_RING_GLOBAL weft_ring* end) {
  if (WEFT_RING_LOAD_32(WEFT_RING_WORD_32(end, stop)) != 0) return WEFT_RING_STOPPED;
  WEFT_RING_KEEP_64(&end->waits, end->waits + 1);
  return WEFT_RING_FULL;
}

WEFT_RING_FUNCTION int weft_ring_space(WEFT_RING_GLOBAL weft_ring* end) {
  if (end->position - end->credit_seen < end->capacity) return WEFT_RING_OK;
  const int seen = weft_ring_look_for_space(end, 1);
  return seen == WEFT_RING_FULL ? weft_ring_no_space(end) : seen;
}

/* Writes one message into the slots layout, for which there is space. */
WEFT_RING_FUNCTION void weft_ring_put_slot(WEFT_RING_GLOBAL weft_ring* end, const void* message, weft_uint32 bytes,
                                           weft_uint32 stride) {
  const weft_uint64 at = end->position;
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * stride;
  WEFT_RING_CLAIM(slot, stride);
  WEFT_RING_COPY(slot, message, bytes);
  WEFT_RING_STORE_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + stride - 4), (weft_uint32)(at >> end->shift) + 1);
  WEFT_RING_KEEP_64(&end->position, at + 1);
}

/* Writes one message into the packed layout, for which there is space. */
WEFT_RING_FUNCTION void weft_ring_put_packed(WEFT_RING_GLOBAL weft_ring* end, const void* message, weft_uint32 bytes,
                                             weft_uint32 per_line) {
  const weft_uint64 line = end->line;
  const weft_uint32 index = end->index;
  WEFT_RING_GLOBAL weft_uint8* at = WEFT_RING_SLOTS(end) + (line & end->mask) * WEFT_RING_LINE;
  WEFT_RING_COPY(at + index * bytes, message, bytes);
  WEFT_RING_STORE_64((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_64*)(at + WEFT_RING_LINE_PAYLOAD),
                     ((line + 1) << 8) | (index + 1));
  if (index + 1 == per_line) {
    end->index = 0;
    end->line = line + 1;
  } else {
    end->index = index + 1;
  }
  WEFT_RING_KEEP_64(&end->position, end->position + 1);
}

/* Bytes of a message in one of its pieces. */
WEFT_RING_FUNCTION weft_uint32 weft_ring_in_piece(weft_uint32 bytes, weft_uint32 piece) {
  const weft_uint32 left = bytes - piece * WEFT_RING_PIECE_PAYLOAD;
  return left < WEFT_RING_PIECE_PAYLOAD ? left : WEFT_RING_PIECE_PAYLOAD;
}

/* Writes one message into the pieces layout, for which there is space. Each piece says by itself that it is there, so
 * that only one of them has to wait for what was written before the message. */
WEFT_RING_FUNCTION void weft_ring_put_pieces(WEFT_RING_GLOBAL weft_ring* end, const void* message) {
  const weft_uint64 at = end->position;
  const weft_uint32 lap = (weft_uint32)(at >> end->shift) + 1;
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * end->stride;
#if defined(WEFT_RING_WHOLE_PIECES)
#pragma unroll
  for (weft_uint32 piece = 0; piece < WEFT_RING_MOST_PIECES; ++piece) {
    if (piece < end->pieces) {
      const weft_ring_word* words = (const weft_ring_word*)message + 3 * piece;
      const weft_uint32 bytes = weft_ring_in_piece(end->bytes, piece);
      weft_uint64 low = words[0];
      weft_uint64 high = (weft_uint64)lap << 32;
      if (bytes > 4) low |= (weft_uint64)words[1] << 32;
      if (bytes > 8) high |= words[2];
      weft_ring_store_piece(slot + piece * WEFT_RING_PIECE, low, high, piece == 0);
    }
  }
#else
  const weft_uint8* from = (const weft_uint8*)message;
  for (weft_uint32 piece = 0; piece < end->pieces; ++piece) {
    WEFT_RING_COPY_PIECE(slot, from, weft_ring_in_piece(end->bytes, piece));
    WEFT_RING_STORE_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + WEFT_RING_PIECE_PAYLOAD), lap);
    slot += WEFT_RING_PIECE;
    from += WEFT_RING_PIECE_PAYLOAD;
  }
#endif
  WEFT_RING_KEEP_64(&end->position, at + 1);
}

/* How many of `wanted` messages fit; looks at the credit only when it has to. `why` is set when none does. */
WEFT_RING_FUNCTION weft_uint64 weft_ring_space_for(WEFT_RING_GLOBAL weft_ring* end, weft_uint64 wanted, int* why) {
  weft_uint64 space = end->capacity - (end->position - end->credit_seen);
  if (space < wanted) {
    const int seen = weft_ring_look_for_space(end, 1);
    space = end->capacity - (end->position - end->credit_seen);
    if (seen != WEFT_RING_OK) {
      *why = seen == WEFT_RING_FULL ? weft_ring_no_space(end) : seen;
      return 0;
    }
  }
  *why = WEFT_RING_OK;
  return space < wanted ? space : wanted;
}

/* Sends a prefix of `count` messages that lie one behind another; its length. `why` is set when that is 0. */
WEFT_RING_FUNCTION weft_uint64 weft_ring_put_slots(WEFT_RING_GLOBAL weft_ring* end, const void* messages,
                                                   weft_uint64 count, weft_uint32 bytes, weft_uint32 stride, int* why) {
  const weft_uint64 fits = weft_ring_space_for(end, count, why);
  const weft_uint8* from = (const weft_uint8*)messages;
  WEFT_RING_GLOBAL weft_uint8* slots = WEFT_RING_SLOTS(end);
  const weft_uint64 mask = end->mask;
  const weft_uint32 shift = end->shift;
  const weft_uint64 first = end->position;
  for (weft_uint64 at = first; at != first + fits; ++at) {
    WEFT_RING_GLOBAL weft_uint8* slot = slots + (at & mask) * stride;
    if (at + 1 != first + fits) {
      WEFT_RING_CLAIM(slots + ((at + 1) & mask) * stride, stride);
    }
    WEFT_RING_COPY(slot, from, bytes);
    WEFT_RING_STORE_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + stride - 4), (weft_uint32)(at >> shift) + 1);
    from += bytes;
  }
  WEFT_RING_KEEP_64(&end->position, first + fits);
  return fits;
}

/* As weft_ring_put_slots, a line at a time: a line that is filled from its start is published once. */
WEFT_RING_FUNCTION weft_uint64 weft_ring_put_lines(WEFT_RING_GLOBAL weft_ring* end, const void* messages,
                                                   weft_uint64 count, weft_uint32 bytes, weft_uint32 per_line,
                                                   int* why) {
  const weft_uint64 fits = weft_ring_space_for(end, count, why);
  const weft_uint8* from = (const weft_uint8*)messages;
  WEFT_RING_GLOBAL weft_uint8* slots = WEFT_RING_SLOTS(end);
  const weft_uint64 mask = end->mask;
  weft_uint64 line = end->line;
  weft_uint32 index = end->index;
  for (weft_uint64 left = fits; left != 0;) {
    WEFT_RING_GLOBAL weft_uint8* at = slots + (line & mask) * WEFT_RING_LINE;
    if (index == 0 && left >= per_line) {
      WEFT_RING_COPY(at, from, per_line * bytes);
      from += per_line * bytes;
      left -= per_line;
      index = per_line;
    } else {
      WEFT_RING_COPY(at + index * bytes, from, bytes);
      from += bytes;
      left -= 1;
      index += 1;
      if (left != 0 && index != per_line) continue;
    }
    WEFT_RING_STORE_64((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_64*)(at + WEFT_RING_LINE_PAYLOAD), ((line + 1) << 8) | index);
    if (index == per_line) {
      index = 0;
      line += 1;
    }
  }
  end->line = line;
  end->index = index;
  WEFT_RING_KEEP_64(&end->position, end->position + fits);
  return fits;
}

/* Tells the reader that nothing follows. Needs no space and cannot wait. */
WEFT_RING_FUNCTION void weft_ring_close_writer(WEFT_RING_GLOBAL weft_ring* end) {
  WEFT_RING_STORE_64(WEFT_RING_WORD_64(end, fin), end->position);
}

/* ---- the reader -----------------------------------------------------------------------------------------------------
 */

WEFT_RING_FUNCTION void weft_ring_give_credit(WEFT_RING_GLOBAL weft_ring* end) {
  end->credit_seen = end->position;
  WEFT_RING_STORE_64(WEFT_RING_WORD_64(end, credit), end->position);
}

/* A quarter of the ring at a time: the writer is short of space only when three quarters are unread. */
WEFT_RING_FUNCTION void weft_ring_owe_credit(WEFT_RING_GLOBAL weft_ring* end) {
  if (end->position - end->credit_seen >= end->capacity / 4) weft_ring_give_credit(end);
}

/* Why nothing was received. */
WEFT_RING_FUNCTION int weft_ring_nothing(WEFT_RING_GLOBAL weft_ring* end) {
  if (end->position != end->credit_seen) weft_ring_give_credit(end);
  const weft_uint64 fin = WEFT_RING_LOAD_64(WEFT_RING_WORD_64(end, fin));
  if (fin == end->position) return WEFT_RING_CLOSED; /* a good end, whatever happened to the writer afterwards */
  if (fin < end->position) return WEFT_RING_CORRUPT;
  if (WEFT_RING_LOAD_32(WEFT_RING_WORD_32(end, stop)) != 0) return WEFT_RING_STOPPED;
  WEFT_RING_KEEP_64(&end->waits, end->waits + 1);
  return WEFT_RING_EMPTY;
}

/* The next slot, or null when nothing is there; `seen` is the stamp that said so. */
WEFT_RING_FUNCTION WEFT_RING_GLOBAL weft_uint8* weft_ring_look_slot(WEFT_RING_GLOBAL weft_ring* end, weft_uint32 stride,
                                                                    weft_uint32* seen) {
  const weft_uint64 at = end->position;
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * stride;
  *seen = WEFT_RING_LOAD_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + stride - 4));
  return *seen == (weft_uint32)(at >> end->shift) + 1 ? slot : (WEFT_RING_GLOBAL weft_uint8*)0;
}

WEFT_RING_FUNCTION WEFT_RING_GLOBAL weft_uint8* weft_ring_peek_slot(WEFT_RING_GLOBAL weft_ring* end,
                                                                    weft_uint32 stride) {
  weft_uint32 seen;
  return weft_ring_look_slot(end, stride, &seen);
}

/* True when a stamp cannot be: it is neither this lap's nor the one before. */
WEFT_RING_FUNCTION int weft_ring_is_torn_stamp(WEFT_RING_GLOBAL weft_ring* end, weft_uint32 stamp) {
  const weft_uint32 before = (weft_uint32)(end->position >> end->shift);
  return stamp != before && stamp != before + 1;
}

WEFT_RING_FUNCTION int weft_ring_is_torn_slot(WEFT_RING_GLOBAL weft_ring* end, weft_uint32 stride) {
  weft_uint32 seen;
  weft_ring_look_slot(end, stride, &seen);
  return weft_ring_is_torn_stamp(end, seen);
}

WEFT_RING_FUNCTION void weft_ring_pop_slot(WEFT_RING_GLOBAL weft_ring* end) {
  WEFT_RING_KEEP_64(&end->position, end->position + 1);
  weft_ring_owe_credit(end);
}

/* The next message of the packed layout, or null; `seen` is the line's word that said so. The count is compared, never
 * calculated with: arithmetic on it would make the next address wait for this line's miss. */
WEFT_RING_FUNCTION WEFT_RING_GLOBAL weft_uint8* weft_ring_look_packed(WEFT_RING_GLOBAL weft_ring* end,
                                                                      weft_uint32 bytes, weft_uint64* seen) {
  const weft_uint64 line = end->line;
  const weft_uint32 index = end->index;
  WEFT_RING_GLOBAL weft_uint8* at = WEFT_RING_SLOTS(end) + (line & end->mask) * WEFT_RING_LINE;
  const weft_uint64 word = WEFT_RING_LOAD_64((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_64*)(at + WEFT_RING_LINE_PAYLOAD));
  *seen = word;
  if ((word >> 8) != ((line + 1) & 0x00ffffffffffffffUL) || (word & 0xff) <= index) {
    return (WEFT_RING_GLOBAL weft_uint8*)0;
  }
  return at + index * bytes;
}

WEFT_RING_FUNCTION WEFT_RING_GLOBAL weft_uint8* weft_ring_peek_packed(WEFT_RING_GLOBAL weft_ring* end,
                                                                      weft_uint32 bytes) {
  weft_uint64 seen;
  return weft_ring_look_packed(end, bytes, &seen);
}

/* As weft_ring_is_torn_stamp: the word is that of this line, or of the same line a lap ago, and never beyond its end.
 */
WEFT_RING_FUNCTION int weft_ring_is_torn_word(WEFT_RING_GLOBAL weft_ring* end, weft_uint64 word, weft_uint32 per_line) {
  const weft_uint64 line = end->line;
  const weft_uint64 now = (line + 1) & 0x00ffffffffffffffUL;
  const weft_uint64 before = line > end->mask ? (line - end->mask) & 0x00ffffffffffffffUL : 0;
  if ((word >> 8) == now) return (word & 0xff) > per_line || (word & 0xff) == 0;
  if (word == 0) return before != 0;
  return (word >> 8) != before || (word & 0xff) != per_line;
}

WEFT_RING_FUNCTION int weft_ring_is_torn_packed(WEFT_RING_GLOBAL weft_ring* end, weft_uint32 per_line) {
  weft_uint64 seen;
  weft_ring_look_packed(end, 0, &seen);
  return weft_ring_is_torn_word(end, seen, per_line);
}

WEFT_RING_FUNCTION void weft_ring_pop_packed(WEFT_RING_GLOBAL weft_ring* end, weft_uint32 per_line) {
  if (end->index + 1 == per_line) {
    end->index = 0;
    end->line = end->line + 1;
  } else {
    end->index = end->index + 1;
  }
  weft_ring_pop_slot(end);
}

/* Takes the next message of the pieces layout; 0, and `message` as it was, while one of its pieces is not there. */
WEFT_RING_FUNCTION int weft_ring_get_pieces(WEFT_RING_GLOBAL weft_ring* end, void* message) {
  const weft_uint64 at = end->position;
  const weft_uint32 lap = (weft_uint32)(at >> end->shift) + 1;
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * end->stride;
#if defined(WEFT_RING_WHOLE_PIECES)
  /* all are on their way at once; what comes after this waits for the one that released, which is asked for last */
  weft_uint64 low[WEFT_RING_MOST_PIECES];
  weft_uint64 high[WEFT_RING_MOST_PIECES];
  int is_whole = 1;
#pragma unroll
  for (int piece = WEFT_RING_MOST_PIECES - 1; piece >= 0; --piece) {
    low[piece] = 0;
    high[piece] = (weft_uint64)lap << 32;
    if (piece < (int)end->pieces) {
      weft_ring_load_piece(slot + piece * WEFT_RING_PIECE, &low[piece], &high[piece], piece == 0);
    }
  }
#pragma unroll
  for (int piece = 0; piece < WEFT_RING_MOST_PIECES; ++piece) is_whole &= (weft_uint32)(high[piece] >> 32) == lap;
  if (!is_whole) return 0;
#pragma unroll
  for (weft_uint32 piece = 0; piece < WEFT_RING_MOST_PIECES; ++piece) {
    if (piece < end->pieces) {
      weft_ring_word* words = (weft_ring_word*)message + 3 * piece;
      const weft_uint32 bytes = weft_ring_in_piece(end->bytes, piece);
      words[0] = (weft_uint32)low[piece];
      if (bytes > 4) words[1] = (weft_uint32)(low[piece] >> 32);
      if (bytes > 8) words[2] = (weft_uint32)high[piece];
    }
  }
#else
  for (weft_uint32 piece = 0; piece < end->pieces; ++piece) {
    const weft_uint32 stamp = WEFT_RING_LOAD_32(
        (WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + piece * WEFT_RING_PIECE + WEFT_RING_PIECE_PAYLOAD));
    if (stamp != lap) return 0;
  }
  weft_uint8* to = (weft_uint8*)message;
  for (weft_uint32 piece = 0; piece < end->pieces; ++piece) {
    WEFT_RING_COPY_PIECE(to, slot, weft_ring_in_piece(end->bytes, piece));
    slot += WEFT_RING_PIECE;
    to += WEFT_RING_PIECE_PAYLOAD;
  }
#endif
  weft_ring_pop_slot(end);
  return 1;
}

/* As weft_ring_is_torn_slot: of any piece. */
WEFT_RING_FUNCTION int weft_ring_is_torn_in_pieces(WEFT_RING_GLOBAL weft_ring* end) {
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (end->position & end->mask) * end->stride;
  for (weft_uint32 piece = 0; piece < end->pieces; ++piece) {
    const weft_uint32 stamp = WEFT_RING_LOAD_32(
        (WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + piece * WEFT_RING_PIECE + WEFT_RING_PIECE_PAYLOAD));
    if (weft_ring_is_torn_stamp(end, stamp)) return 1;
  }
  return 0;
}

/* Receives up to `count` messages into memory where they lie one behind another; how many. */
WEFT_RING_FUNCTION weft_uint64 weft_ring_get_slots(WEFT_RING_GLOBAL weft_ring* end, void* messages, weft_uint64 count,
                                                   weft_uint32 bytes, weft_uint32 stride) {
  weft_uint8* to = (weft_uint8*)messages;
  WEFT_RING_GLOBAL weft_uint8* slots = WEFT_RING_SLOTS(end);
  const weft_uint64 mask = end->mask;
  const weft_uint32 shift = end->shift;
  const weft_uint64 quarter = end->capacity / 4;
  const weft_uint64 first = end->position;
  weft_uint64 at = first;
  for (; at != first + count; ++at) {
    WEFT_RING_GLOBAL weft_uint8* slot = slots + (at & mask) * stride;
    const weft_uint32 stamp = WEFT_RING_LOAD_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + stride - 4));
    if (stamp != (weft_uint32)(at >> shift) + 1) break;
    WEFT_RING_COPY(to, slot, bytes);
    to += bytes;
    if (at + 1 - end->credit_seen >= quarter) {
      end->credit_seen = at + 1;
      WEFT_RING_STORE_64(WEFT_RING_WORD_64(end, credit), at + 1);
    }
  }
  WEFT_RING_KEEP_64(&end->position, at);
  return at - first;
}

/* As weft_ring_get_slots, for the packed layout. */
WEFT_RING_FUNCTION weft_uint64 weft_ring_get_lines(WEFT_RING_GLOBAL weft_ring* end, void* messages, weft_uint64 count,
                                                   weft_uint32 bytes, weft_uint32 per_line) {
  weft_uint8* to = (weft_uint8*)messages;
  WEFT_RING_GLOBAL weft_uint8* slots = WEFT_RING_SLOTS(end);
  const weft_uint64 mask = end->mask;
  const weft_uint64 quarter = end->capacity / 4;
  weft_uint64 line = end->line;
  weft_uint32 index = end->index;
  weft_uint64 left = count;
  while (left != 0) {
    WEFT_RING_GLOBAL weft_uint8* at = slots + (line & mask) * WEFT_RING_LINE;
    const weft_uint64 word = WEFT_RING_LOAD_64((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_64*)(at + WEFT_RING_LINE_PAYLOAD));
    if ((word >> 8) != ((line + 1) & 0x00ffffffffffffffUL)) break;
    if (index == 0 && left >= per_line && (word & 0xff) == per_line) {
      WEFT_RING_COPY(to, at, per_line * bytes);
      to += per_line * bytes;
      left -= per_line;
      line += 1;
    } else {
      /* a published line is never longer than a line, whatever the word says */
      if ((word & 0xff) <= index) break;
      WEFT_RING_COPY(to, at + index * bytes, bytes);
      to += bytes;
      left -= 1;
      index += 1;
      if (index == per_line) {
        index = 0;
        line += 1;
      }
    }
    const weft_uint64 read = end->position + (count - left);
    if (read - end->credit_seen >= quarter) {
      end->credit_seen = read;
      WEFT_RING_STORE_64(WEFT_RING_WORD_64(end, credit), read);
    }
  }
  end->line = line;
  end->index = index;
  WEFT_RING_KEEP_64(&end->position, end->position + (count - left));
  return count - left;
}

/* Tells the writer that nothing will be read any more. */
WEFT_RING_FUNCTION void weft_ring_close_reader(WEFT_RING_GLOBAL weft_ring* end) {
  end->credit_seen = end->position; /* so that a late look at an empty ring does not take the close back */
  WEFT_RING_STORE_64(WEFT_RING_WORD_64(end, credit), end->position | WEFT_RING_CLOSED_BIT);
}

/* ---- overwrite_oldest: the writer never waits and never looks at the credit; the reader finds out that it was lapped
 * --
 *
 * The slots layout with messages of whole 4-byte words. A slot is stamped 2·lap − 1 while it is written and 2·lap when
 * it is whole; the words are stored and loaded as atomics, each ordered behind the stamp that guards it, so that a
 * reader who sees the same even stamp before and after has read one message and not two halves. */

/* Writes one message over whatever is there; not OK only when the reader has closed, or the queue was stopped: both are
 * looked at once a lap. */
WEFT_RING_FUNCTION int weft_ring_put_over(WEFT_RING_GLOBAL weft_ring* end, const weft_uint32* words) {
  const weft_uint64 at = end->position;
  const weft_uint32 lap = (weft_uint32)(at >> end->shift) + 1;
  WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * end->stride;
  WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32* stamp = (WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + end->stride - 4);
  if ((at & end->mask) == 0) {
    if (WEFT_RING_LOAD_32(WEFT_RING_WORD_32(end, stop)) != 0) return WEFT_RING_STOPPED;
    if ((WEFT_RING_LOAD_64(WEFT_RING_WORD_64(end, credit)) & WEFT_RING_CLOSED_BIT) != 0) {
      return WEFT_RING_CLOSED;
    }
  }
  WEFT_RING_STORE_32(stamp, 2 * lap - 1);
  for (weft_uint32 word = 0; word < end->bytes / 4; ++word) {
    WEFT_RING_STORE_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)slot + word, words[word]);
  }
  WEFT_RING_STORE_32(stamp, 2 * lap);
  WEFT_RING_KEEP_64(&end->position, at + 1);
  return WEFT_RING_OK;
}

/* Reads the oldest message that is still whole. `lost` grows by exactly the messages that were overwritten unread. */
WEFT_RING_FUNCTION int weft_ring_get_over(WEFT_RING_GLOBAL weft_ring* end, weft_uint32* words, weft_uint64* lost) {
  for (int tries = 0; tries < 64; ++tries) {
    const weft_uint64 at = end->position;
    const weft_uint32 whole = 2 * ((weft_uint32)(at >> end->shift) + 1);
    WEFT_RING_GLOBAL weft_uint8* slot = WEFT_RING_SLOTS(end) + (at & end->mask) * end->stride;
    WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32* stamp = (WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + end->stride - 4);
    weft_uint32 seen = WEFT_RING_LOAD_32(stamp);
    if (seen == whole) {
      for (weft_uint32 word = 0; word < end->bytes / 4; ++word) {
        words[word] = WEFT_RING_LOAD_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)slot + word);
      }
      seen = WEFT_RING_LOAD_32(stamp);
      if (seen == whole) {
        WEFT_RING_KEEP_64(&end->position, at + 1);
        return WEFT_RING_OK;
      }
    }
    const weft_uint32 ahead = seen - whole; /* in half laps; more than half of all numbers: behind */
    if (ahead == 0 || ahead > 0x7fffffffU) return weft_ring_nothing(end);
    /* this slot holds, or is getting, the message of (ahead + 1) / 2 laps later: one lap before that is gone */
    weft_uint64 gone = (((weft_uint64)ahead + 1) / 2 - 1) * (end->mask + 1) + 1;
    /* and all before a later slot that is ahead too: the oldest whole one is found by halves, however long the ring */
    for (weft_uint64 step = (end->mask + 1) / 2; step != 0; step /= 2) {
      const weft_uint64 last = at + gone + step - 1;
      slot = WEFT_RING_SLOTS(end) + (last & end->mask) * end->stride;
      seen = WEFT_RING_LOAD_32((WEFT_RING_GLOBAL WEFT_RING_ATOMIC_32*)(slot + end->stride - 4));
      const weft_uint32 further = seen - 2 * ((weft_uint32)(last >> end->shift) + 1);
      if (further != 0 && further <= 0x7fffffffU) gone += step;
    }
    *lost += gone;
    WEFT_RING_KEEP_64(&end->position, at + gone);
  }
  return WEFT_RING_EMPTY;
}

/* ---- what a kernel calls: sizes from the end itself, waits bounded by a number of polls
 * ------------------------------ */

WEFT_RING_FUNCTION int weft_ring_try_send(WEFT_RING_GLOBAL weft_ring* end, const void* message) {
  const int space = weft_ring_space(end);
  if (space != WEFT_RING_OK) return space;
  if (end->pieces != 0) {
    weft_ring_put_pieces(end, message);
  } else if (end->stride == 0) {
    weft_ring_put_packed(end, message, end->bytes, end->per_line);
  } else {
    weft_ring_put_slot(end, message, end->bytes, end->stride);
  }
  return WEFT_RING_OK;
}

/* Whether copies may be at work on the next slot. */
WEFT_RING_FUNCTION int weft_ring_is_on_its_way(WEFT_RING_GLOBAL weft_ring* end) {
  return end->tail != 0 && WEFT_RING_LOAD_64(WEFT_RING_WORD_64(end, tail)) <= end->position;
}

/* Takes the next message; 0 when nothing is there. */
WEFT_RING_FUNCTION int weft_ring_take(WEFT_RING_GLOBAL weft_ring* end, void* message) {
  if (weft_ring_is_on_its_way(end)) return 0;
  if (end->pieces != 0) return weft_ring_get_pieces(end, message);
  WEFT_RING_GLOBAL weft_uint8* from =
      end->stride == 0 ? weft_ring_peek_packed(end, end->bytes) : weft_ring_peek_slot(end, end->stride);
  if (from == (WEFT_RING_GLOBAL weft_uint8*)0) return 0;
  WEFT_RING_FETCH(message, from, end->bytes);
  if (end->stride == 0) {
    weft_ring_pop_packed(end, end->per_line);
  } else {
    weft_ring_pop_slot(end);
  }
  return 1;
}

/* Why weft_ring_take() took nothing. */
WEFT_RING_FUNCTION int weft_ring_absent(WEFT_RING_GLOBAL weft_ring* end) {
  int torn;
  if (weft_ring_is_on_its_way(end)) return weft_ring_nothing(end);
  if (end->pieces != 0) {
    torn = weft_ring_is_torn_in_pieces(end);
  } else if (end->stride == 0) {
    torn = weft_ring_is_torn_packed(end, end->per_line);
  } else {
    torn = weft_ring_is_torn_slot(end, end->stride);
  }
  return torn ? WEFT_RING_CORRUPT : weft_ring_nothing(end);
}

/* Sends, waiting for space during at most `polls` looks; WEFT_RING_FULL when they are used up. */
WEFT_RING_FUNCTION int weft_ring_send(WEFT_RING_GLOBAL weft_ring* end, const void* message, weft_uint64 polls) {
  int came_to = weft_ring_try_send(end, message);
  for (weft_uint64 done = 0; came_to == WEFT_RING_FULL && done < WEFT_RING_LOOKS(polls); ++done) {
    WEFT_RING_PAUSE();
    came_to = weft_ring_try_send(end, message);
  }
  return came_to;
}

/* Receives, waiting during at most `polls` looks; WEFT_RING_EMPTY when they are used up. Whether the other end is still
 * there is asked at the first, the last and every 64th: each read may cross a bus, and each but the message's is late.
 * What was sent before a stop is received before it is told: the stop is seen after a look that came too early.
 */
WEFT_RING_FUNCTION int weft_ring_receive(WEFT_RING_GLOBAL weft_ring* end, void* message, weft_uint64 polls) {
  const weft_uint64 last = WEFT_RING_LOOKS(polls);
  int came_to = WEFT_RING_EMPTY;
  weft_uint64 looked = 0; /* without asking why */
  for (weft_uint64 done = 0;; ++done) {
    if (weft_ring_take(end, message)) {
      came_to = WEFT_RING_OK;
      break;
    }
    if (came_to == WEFT_RING_STOPPED) break;
    if (done % 64 == 0 || done == last) {
      came_to = weft_ring_absent(end);
      if (came_to == WEFT_RING_STOPPED) continue;
      if (came_to != WEFT_RING_EMPTY || done == last) break;
    } else {
      looked += 1;
    }
    WEFT_RING_PAUSE();
  }
  if (looked != 0) WEFT_RING_KEEP_64(&end->waits, end->waits + looked);
  return came_to;
}

WEFT_RING_FUNCTION int weft_ring_try_receive(WEFT_RING_GLOBAL weft_ring* end, void* message) {
  return weft_ring_receive(end, message, 0);
}

/* NOLINTEND(modernize-*) */
#endif
