/* The native core's C interface: encoded images and views in, finished images in the batch out.
 *
 * Every function may be called from several threads at once.  Nothing throws, calls back, prints, or knows Python.
 * Pixels are RGB, 8 bits a channel, with Pillow's values.  Rectangles are (left, top, right, bottom), half-open.
 */
#ifndef FASTDATA_NATIVE_H
#define FASTDATA_NATIVE_H

#include <stdint.h>

#if defined(_WIN32)
#define FD_API __declspec(dllexport)
#else
#define FD_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a signature or a struct below changes. */
#define FD_ABI_VERSION 2

/* What became of one image. */
enum fd_status {
    FD_OK = 0,
    FD_UNSUPPORTED = 1, /* another decoder must do it: not a JPEG, CMYK, 12-bit, no end marker, ... */
    FD_CORRUPT = 2,     /* the data is damaged, or libjpeg complained; Pillow's verdict counts */
    FD_LIMIT = 3,       /* more pixels, memory or progressive scans than allowed */
    FD_UNREADABLE = 4,  /* the file cannot be opened or read */
    FD_BAD_REQUEST = 5, /* the caller's fault: a window outside the image, a size that is not positive */
    FD_OUT_OF_MEMORY = 6
};

enum fd_layout { FD_NHWC = 0, FD_NCHW = 1 };

/* Bytes of one output element; 2 and 4 are looked up in the table, 1 is the pixel itself. */
enum fd_element { FD_UINT8 = 1, FD_TABLE_16BIT = 2, FD_TABLE_32BIT = 4 };

/* Pillow's numbers. */
enum fd_filter { FD_NEAREST = 0, FD_LANCZOS = 1, FD_BILINEAR = 2, FD_BICUBIC = 3, FD_BOX = 4, FD_HAMMING = 5 };

/* The order of a resize's two passes, which differs between Pillow's versions. */
enum fd_pass_order {
    FD_HORIZONTAL_FIRST = 0, /* Pillow before 13 */
    FD_SHRINK_FIRST = 1      /* Pillow 13: vertically first when height - out_height > max(0, 2 (width - out_width)) */
};

/* How finished pixels are stored. */
typedef struct {
    int32_t layout;    /* fd_layout */
    int32_t element;   /* fd_element */
    const void *table; /* element values of (3 channels, 256 levels); NULL for FD_UINT8 */
} fd_format;

typedef struct {
    int32_t filter;           /* fd_filter */
    int32_t pass_order;       /* fd_pass_order */
    int32_t fast;             /* not 0: scaled DCT where it fits, and cheap chroma upsampling */
    int32_t max_scans;        /* of a progressive JPEG */
    int64_t max_pixels;       /* of a whole image */
    int64_t max_memory_bytes; /* libjpeg's own, for one image */
} fd_options;

/* N images. Columns have N rows. */
typedef struct {
    int64_t count;
    const uint8_t *const *data;
    const int64_t *data_bytes;
    const int32_t *windows_px; /* (N, 4): inside the image */
    const int32_t *resizes_px; /* (N, 2): width and height the window is resized to */
    const int32_t *crops_px;   /* (N, 4): of the resized image; outside it is black */
    const uint8_t *flips;      /* (N, 2): left to right, top to bottom */
    void *const *out;          /* each of crop height x crop width x 3 elements */
    int32_t *statuses;         /* (N,): fd_status */
    char *messages;            /* (N, FD_MESSAGE_BYTES), NUL-terminated; empty where the status says it all */
} fd_images;

#define FD_MESSAGE_BYTES 128

typedef struct fd_pool fd_pool;
typedef struct fd_files fd_files;

FD_API int32_t fd_abi_version(void);

/* For people: the libjpeg in use, and the instruction set chosen at run time. */
FD_API const char *fd_description(void);

/* Chooses the inner loops by name ("AVX2", "NEON", "plain") instead of by processor; for tests, which compare them.
 * 0 when this processor lacks them. */
FD_API int32_t fd_choose_kernels(const char *name);

/* Threads start with the first call that uses them, again after a fork.  NULL when out of memory. */
FD_API fd_pool *fd_pool_create(int32_t threads);

/* Waits for calls in progress, then joins the threads.  In a forked child nothing is joined. */
FD_API void fd_pool_destroy(fd_pool *pool);

/* Reads N files, or parts of them, and parses the sizes of the JPEGs among them.
 *
 * offsets and lengths may be NULL for whole files.  statuses: FD_OK, FD_UNREADABLE (message: why), or FD_UNSUPPORTED
 * when the bytes are there but the header is not that of a JPEG.  sizes_px: (N, 2), width and height.
 * pool: NULL to work in the calling thread.  NULL when out of memory.
 */
FD_API fd_files *fd_files_read(fd_pool *pool, int64_t count, const char *const *paths, const int64_t *offsets,
                               const int64_t *lengths, int32_t *sizes_px, int32_t *statuses, char *messages);
FD_API const uint8_t *const *fd_files_data(const fd_files *files);
FD_API const int64_t *fd_files_bytes(const fd_files *files);
FD_API void fd_files_free(fd_files *files);

/* Decodes N images; the answer is in statuses and messages.  pool: NULL to work in the calling thread. */
FD_API void fd_decode(fd_pool *pool, const fd_images *images, const fd_format *format, const fd_options *options);

/* Resizes, crops and flips pixels (4 bytes each, the fourth ignored) that begin at the window's first. */
FD_API int32_t fd_resize(const uint8_t *rgbx, int64_t rgbx_bytes, int64_t stride_bytes, int32_t width, int32_t height,
                         const int32_t resize_px[2], const int32_t crop_px[4], const uint8_t flips[2], void *out,
                         const fd_format *format, const fd_options *options);

/* Stores RGB pixels (height, width, 3) in another format. */
FD_API int32_t fd_convert(const uint8_t *rgb, int32_t width, int32_t height, void *out, const fd_format *format);

/* Philox-4x32-10: four 32-bit words for each of N counters (first[i], second[i], third[i], fourth), as four columns of
 * N. The low 32 bits of a counter's parts count.  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
 */
FD_API void fd_philox(int64_t count, const int64_t *first, const int64_t *second, const int64_t *third, int64_t fourth,
                      const uint32_t key[2], uint64_t *words);

#ifdef __cplusplus
}
#endif
#endif
