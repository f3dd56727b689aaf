/* SPDX-License-Identifier: Apache-2.0
 * What a compiled kernel and the virtual driver know of each other. Plain C, since it is also put before the text of
 * every kernel. */
#ifndef WEFT_VIRTUAL_DEVICE_SIDE_H
#define WEFT_VIRTUAL_DEVICE_SIDE_H

#define WEFT_VIRTUAL_MOST_REPLICAS 16

struct weft_virtual_dim {
  unsigned x, y, z;
};

/* The thread that runs now. */
struct weft_virtual_thread {
  struct weft_virtual_dim thread, block, block_size, grid_size;
};

struct weft_virtual_launch {
  struct weft_virtual_dim grid, block;
  unsigned shared_bytes;
};

/* What the driver does for a kernel. */
struct weft_virtual_services {
  void (*barrier)(int of_warp); /* until every thread of the block, or of the warp, is there or has ended */
  unsigned long long (*exchange)(unsigned long long value, int from); /* the value of another thread of the warp */
  void* (*shared)(void);                                              /* dynamic shared memory of the block */
  void (*yield)(void);                                                /* lets others run */
  void (*fail)(int code);                                             /* ends the kernel; the context is lost */
  unsigned long long (*clock)(void);                                  /* nanoseconds */
  /* Where the replicas of a multicast address are, in the order of their devices; how many. */
  unsigned (*replicas)(unsigned long long address, unsigned size, unsigned char** where);
  unsigned (*multiprocessor)(unsigned block); /* that a block runs on */
};

struct weft_virtual_entry {
  const char* name; /* null: that of the symbol of `address` */
  void* address;
  unsigned count;
  const unsigned* sizes;
  const unsigned* alignments;
  const unsigned char* is_pointer;
  void (*call)(void** arguments);                                   /* one thread */
  void (*all)(const struct weft_virtual_launch*, void** arguments); /* every thread, one after the other */
  unsigned most_threads; /* of a block, by its launch bounds; 0: as many as the device takes */
};

struct weft_virtual_table {
  unsigned count;
  const struct weft_virtual_entry* entries;
  int has_barriers;
  int has_variables; /* __device__ or __constant__ ones, perhaps */
  void (*start)(const struct weft_virtual_services*);
  struct weft_virtual_thread* (*now)(void);
};

#endif
