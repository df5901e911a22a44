/* The native core's C interface: encoded images and views in, finished images in the batch out.
 *
 * Every function may be called from several threads at once.  Nothing throws, calls back, prints, or knows Python.
 * Pixels are RGB, 8 bits a channel, with Pillow's values.  Rectangles are (left, top, right, bottom), half-open.
 *
 * Images, records and indexes may come from anybody: whatever they hold, no other memory is read or written.  Pointers,
 * counts and structs come from the caller and are trusted.  An index or record that was made on purpose may show other
 * pixels than its image's: checksums are no signatures.
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
#define FD_ABI_VERSION 25

/* What became of one image. */
enum fd_status {
    FD_OK = 0,
    FD_UNSUPPORTED = 1, /* another decoder must do it: WebP, CMYK, 12-bit, no end marker, ... */
    FD_CORRUPT = 2,     /* the data is damaged, or libjpeg complained; Pillow's verdict counts */
    FD_LIMIT = 3,       /* more pixels, memory or progressive scans than allowed */
    FD_UNREADABLE = 4,  /* the file cannot be opened or read */
    FD_BAD_REQUEST = 5, /* the caller's fault: a window outside the image, a size that is not positive */
    FD_OUT_OF_MEMORY = 6,
    FD_NO_VIEW = 7 /* the image is smaller than a random crop */
};

enum fd_layout { FD_NHWC = 0, FD_NCHW = 1 };

/* Bytes of one output element; 2 and 4 are looked up in the table, 1 is the pixel itself. */
enum fd_element { FD_UINT8 = 1, FD_TABLE_16BIT = 2, FD_TABLE_32BIT = 4 };

/* Pillow's numbers; and torch's antialiased filters for uint8 tensors, whose weights have fewer bits. */
enum fd_filter {
    FD_NEAREST = 0,
    FD_LANCZOS = 1,
    FD_BILINEAR = 2,
    FD_BICUBIC = 3,
    FD_BOX = 4,
    FD_HAMMING = 5,
    FD_TENSOR_BILINEAR = 18,
    FD_TENSOR_BICUBIC = 19
};

/* What is seen beside an image; all but the first repeat it, as NumPy's pad does. */
enum fd_padding { FD_CONSTANT = 0, FD_EDGE = 1, FD_REFLECT = 2, FD_SYMMETRIC = 3 };

/* The order of a resize's two passes, which differs between Pillow's versions. */
enum fd_pass_order {
    FD_HORIZONTAL_FIRST = 0, /* Pillow before 13 */
    FD_SHRINK_FIRST = 1      /* Pillow 13: vertically first when height - out_height > max(0, 2 (width - out_width)) */
};

/* How finished pixels are stored. */
typedef struct {
    int32_t layout;     /* fd_layout */
    int32_t element;    /* fd_element */
    int32_t channels;   /* 3, or 1 to store the first alone */
    const void *table;  /* element values of (channels, 256 levels); NULL for FD_UINT8 */
    int64_t strides[2]; /* elements from one row to the next, and from one plane of FD_NCHW to the next; 0 for images
                           with nothing between them */
} fd_format;

typedef struct {
    int32_t pass_order;       /* fd_pass_order, of Pillow's filters */
    int32_t fast;             /* not 0: scaled DCT where it fits, and cheap chroma upsampling */
    int32_t max_scans;        /* of a progressive JPEG */
    int64_t max_pixels;       /* of a whole image */
    int64_t max_memory_bytes; /* libjpeg's own, for one image */
    int64_t max_file_bytes;   /* of an encoded image that is read from a file; others are FD_UNREADABLE */
} fd_options;

/* What augmentations do to finished uint8 pixels, before they are stored in their format; with Pillow's arithmetic, or
 * that of torchvision's v2 operators on uint8 tensors where this differs. */
enum fd_effect_kind {
    FD_NO_EFFECT = 0,
    FD_BRIGHTNESS = 1, /* values[0]: factor, as in Pillow's ImageEnhance; likewise the next two and sharpness */
    FD_CONTRAST = 2,
    FD_SATURATION = 3,
    FD_HUE = 4, /* values[0]: what is added to Pillow's hue, 0 to 255 */
    FD_SHARPNESS = 5,
    FD_GREY = 6,
    FD_INVERT = 7,
    FD_POSTERIZE = 8, /* values[0]: bits that are kept */
    FD_SOLARIZE = 9,  /* values[0]: levels from here on are inverted */
    FD_AUTOCONTRAST = 10,
    FD_EQUALIZE = 11,
    FD_BLUR = 12,    /* values: odd numbers of taps across and down, standard deviations across and down in pixels */
    FD_PERMUTE = 13, /* values: which channel each of three becomes */
    FD_AFFINE = 14,  /* values[0..5]: where (x, y) of the result comes from, [8..10]: levels outside; filter */
    FD_PERSPECTIVE = 15,     /* values[0..7]; otherwise the same */
    FD_BOX_BLUR = 16,        /* values[0]: standard deviation in pixels of Pillow's GaussianBlur */
    FD_SOLARIZE_ADD = 17,    /* values: what is added to levels, and the lowest level that stays */
    FD_FLIP = 18,            /* values: not 0 left to right, not 0 top to bottom */
    FD_MIX_BEGIN = 19,       /* keeps the image, and begins a sum, of zeros, or with values[0] of the image */
    FD_MIX_ADD = 20,         /* adds the image as it is now, with the weight values[0]; then it is as it was kept */
    FD_MIX_END = 21,         /* values[0]: share of the sum in the result */
    FD_MIX_BLEND = 22,       /* as FD_MIX_ADD, with values[0] as the image's share in the sum, which stays 8-bit */
    FD_TENSOR_CONTRAST = 23, /* values[0]: factor; likewise the next and sharpness */
    FD_TENSOR_SATURATION = 24,
    FD_TENSOR_HUE = 25, /* values[1]: share of the circle, -0.5 to 0.5 */
    FD_TENSOR_SHARPNESS = 26,
    FD_TENSOR_GREY = 27,
    FD_TENSOR_AUTOCONTRAST = 28,
    FD_EFFECT_KINDS = 29 /* how many there are; others are FD_BAD_REQUEST */
};

typedef struct {
    int32_t kind;   /* fd_effect_kind */
    int32_t filter; /* FD_NEAREST, FD_BILINEAR or FD_BICUBIC */
    double values[11];
} fd_effect;

/* What became of an image's index. */
enum fd_index_use {
    FD_INDEX_UNUSED = 0, /* there is none, or it was not needed */
    FD_INDEX_USED = 1,
    FD_INDEX_WRONG = 2 /* damaged, or of another image, which was decoded without it */
};

/* Indexes of JPEGs, as fd_index makes them.  Columns have N rows. */
typedef struct {
    const uint8_t *const *data; /* NULL where there is none */
    const int64_t *data_bytes;
    const int64_t *file_bytes;  /* of the whole file in which the image lies; another size means: not of this image */
    const int64_t *modified_ns; /* when that was modified, likewise; -1, or NULL as file_bytes: not compared */
    int32_t *uses;              /* result: fd_index_use */
} fd_indexes;

/* How N images are seen. */
typedef struct {
    int32_t *windows_px; /* (N, 4): inside the image */
    int32_t *resizes_px; /* (N, 2): width and height the window is resized to */
    int32_t *crops_px;   /* (N, 4): of the resized image; it may reach out of it */
    uint8_t *flips;   /* (N, 4): at last left to right, top to bottom; and the same of the window, before the resize */
    int32_t *filters; /* (N,): fd_filter */
    uint8_t *outside; /* (N, 4): fd_padding, and the levels of FD_CONSTANT */
} fd_views;

#define FD_MESSAGE_BYTES 128

/* One step of a transform's geometry; see views/plan.py.  Sizes are in pixels, ranges are (from, to). */
enum fd_op_kind {
    FD_RANDOM_RESIZED_CROP = 0, /* width, height, scale, ratio, log_ratio */
    FD_RESIZE = 1,              /* shorter and longest (0: no limit), or width and height where shorter is 0 */
    FD_CENTER_CROP = 2,         /* width, height */
    FD_RANDOM_CROP = 3,         /* width, height, padding, pad_if_needed */
    FD_FLIP_HORIZONTAL = 4,     /* p */
    FD_FLIP_VERTICAL = 5,       /* p */
    FD_PAD = 6,                 /* padding */
    FD_RESIZE_KEEP_RATIO = 7,   /* timm's: width, height, p (share of the longer side), chances, scale, log_ratio */
    FD_RANDOM_CROP_OR_PAD = 8   /* timm's: width, height */
};

typedef struct {
    int32_t kind; /* fd_op_kind */
    int32_t width, height, shorter, longest;
    int32_t pad_if_needed; /* not 0: where the padded image is smaller than the crop, more on both sides */
    int32_t padding[4];    /* at the left, top, right and bottom */
    int32_t outside[4];    /* fd_padding, and levels, of what is padded */
    int32_t filters[4];    /* fd_filter: each sample draws one of them */
    int32_t filter_count;
    int32_t scale_is_of_area; /* not 0: scale is the share of the area that is seen */
    double scale[2], ratio[2], log_ratio[2];
    double p;
    double chances[2]; /* of another scale, and of another ratio */
} fd_op;

/* How the views of samples are drawn, by the counter-based generator of views/draw.py. */
typedef struct {
    const fd_op *ops;
    int64_t op_count;
    uint32_t key[2]; /* from seed and epoch */
} fd_geometry;

/* Numbers that somebody else has drawn for a step of a sample: left, top, right and bottom of the window
 * (FD_RANDOM_RESIZED_CROP), left and top of the crop in pixels of the image without padding (FD_RANDOM_CROP,
 * FD_RANDOM_CROP_OR_PAD), width and height (FD_RESIZE_KEEP_RATIO), not 0 for mirrored (FD_FLIP_...); the last is always
 * the number of the filter among the step's.  Rows of them are (op_count, FD_GIVEN_NUMBERS). */
#define FD_GIVEN_NUMBERS 5

/* An array of equally large images.  Byte 0 of its memory may be before its first pixel, since strides may be negative.
 */
typedef struct {
    const uint8_t *memory;
    int64_t memory_bytes;
    int64_t first_byte;       /* where the first pixel of the first image lies in memory */
    int64_t strides_bytes[4]; /* from one image, row, column and channel to the next */
    int64_t images;           /* how many there are */
    int32_t width, height;
    int32_t channels; /* 3, or 1 for grey, which counts as red, green and blue */
    int32_t reserved;
} fd_array;

/* N images: where each comes from, how it is seen, what is done to it, where it goes.  Columns have N rows; unless it
 * says otherwise, a column may be NULL, and of images with several rows the first is looked at.  Results other than
 * statuses and messages are written where there are such: the caller clears them before. */
typedef struct {
    int64_t count;
    const char *paths; /* N strings one after the other, each ended by NUL; "" where data is given; NULL: no files */
    int64_t paths_bytes;
    const int64_t *offsets;     /* of each image in its file; NULL: the file begins with it */
    const int64_t *lengths;     /* -1, and NULL for all: up to the end of the file */
    const int64_t *crcs;        /* CRC-32C of what is read; -1, and NULL for all: not known */
    const uint8_t *const *data; /* encoded images in memory */
    const int64_t *data_bytes;
    const fd_array *array; /* not NULL: there are neither files nor data, but rows of this */
    const int64_t *rows;
    const int64_t *same_as;    /* the first row of the same encoded image, which is then decoded once; such rows are
                                  neighbours; NULL: all differ */
    const fd_indexes *indexes; /* NULL: there are none */
    const fd_views *views;     /* NULL: views are drawn here, for the sizes of the images */
    const int64_t *indices;    /* what views are drawn for; not NULL if they are */
    const int64_t *occurrences;
    const int64_t *given;     /* (N, op_count, FD_GIVEN_NUMBERS); NULL: all is drawn here */
    int32_t out_size_px[2];   /* width and height of every image whose view is drawn here */
    void *const *out;         /* never NULL: each of crop height x crop width x channels elements */
    const fd_effect *effects; /* (N, effects_per_image), in order; NULL if that is 0 */
    int64_t effects_per_image;
    const uint8_t *kept;   /* not 0: make a record of the image as well, as fd_unpack does, but without trying if the
                            * file can be restored from it; NULL: of none */
    int32_t *statuses;     /* never NULL: fd_status */
    char *messages;        /* (N, FD_MESSAGE_BYTES), NUL-terminated; empty where the status says it all */
    int64_t *read_bytes;   /* result: encoded bytes of each image; in an array those of its pixels */
    uint8_t **records;     /* result where kept: the record, NULL if it has none; fd_free frees it */
    int64_t *record_bytes; /* result where kept; -1: it can have none, not being a JPEG, or being damaged */
    uint8_t **packed;      /* result: not NULL, which asks for it: what a device needs to decode the image instead
                            * (jpeg/packed.h), and nothing is written to out; NULL for an image that is decoded to out,
                            * being no record, or reaching out, or having effects; fd_free frees it */
    int64_t *packed_bytes; /* result where packed */
    int64_t read_ns;       /* result: time spent reading, summed over threads */
    int64_t decode_ns;     /* result: the same for everything else */
} fd_recipes;

typedef struct fd_pool fd_pool;

FD_API int32_t fd_abi_version(void);

/* Size and offsets of members, in order, of the struct of a name: at most `most` numbers.  Returns how many there are;
 * 0 for another name.  Whoever repeats the structs in another language compares. */
FD_API int32_t fd_struct_layout(const char *name, int32_t *numbers, int32_t most);

/* For people: the libraries in use, and the instruction set chosen at run time. */
FD_API const char *fd_description(void);

/* What this build can do here: a sum of the following. */
#define FD_READS_PNGS 1
#define FD_REPLACES_ENTROPY 2 /* libjpeg's entropy decoder, where images are not decoded without it */
FD_API int32_t fd_features(void);

/* Name of the inner loops in use. */
FD_API const char *fd_kernels(void);

/* Chooses the inner loops by name ("AVX2", "NEON", "plain") instead of by processor; for tests, which compare them.
 * 0 when this processor lacks them. */
FD_API int32_t fd_choose_kernels(const char *name);

/* Threads start with the first call that uses them, again after a fork.  NULL when out of memory. */
FD_API fd_pool *fd_pool_create(int32_t threads);

/* Waits for calls in progress, then joins the threads.  In a forked child nothing is joined. */
FD_API void fd_pool_destroy(fd_pool *pool);

/* For a pool in which a call hangs: waits for nobody.  Its threads end by themselves when they can; a call in progress
 * may still return.  The little that they share is never freed. */
FD_API void fd_pool_abandon(fd_pool *pool);

/* Reads, decodes, resizes, changes and stores N images.  The answer is in statuses and messages; one image never hurts
 * another.  pool: NULL to work in the calling thread.  geometry: by which views are drawn; NULL where they are given.
 */
FD_API void fd_fill(fd_pool *pool, fd_recipes *recipes, const fd_geometry *geometry, const fd_format *format,
                    const fd_options *options);

/* Copies N pieces of memory, each to a place of its own. */
FD_API void fd_gather(int64_t count, const uint8_t *const *pieces, const int64_t *piece_bytes, uint8_t *const *places);

/* Reads N encoded images from files.  Of recipes only paths, offsets, lengths, crcs, statuses, messages, read_bytes,
 * which is not NULL, and read_ns are used.  data: NULL to learn read_bytes, the size of each; then data[i] has room for
 * read_bytes[i] bytes, which becomes what was read, and NULL leaves an image out, with its status.  whole: (N); 1 for a
 * JPEG whose data is as fd_has_whole_scans wants it. */
FD_API void fd_read(fd_pool *pool, fd_recipes *recipes, const fd_options *options, uint8_t *const *data,
                    uint8_t *whole);

/* 1 if the entropy-coded data of a JPEG, whose first scan's marker is at `scan_at`, runs to an end marker and holds no
 * marker that may not occur there; else 0.  one_scan: nothing may come between scans, as in a sequential file with all
 * components in one. */
FD_API int32_t fd_has_whole_scans(const uint8_t *data, int64_t data_bytes, int64_t scan_at, int32_t one_scan);

/* Draws the views of N images of the given sizes, (N, 2) width and height; given: as in fd_recipes.  Returns the number
 * of the first row that has none because the image is smaller than a random crop, or -1; -2 for a geometry that makes
 * no sense. */
FD_API int64_t fd_draw_views(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *occurrences,
                             const int64_t *given, const fd_geometry *geometry, const fd_views *views);

/* Resizes, crops and flips pixels that begin at the first of the one view's window.
 * pixel_bytes: 3, or 4, of which the last is ignored. */
FD_API int32_t fd_resize(const uint8_t *pixels, int64_t pixels_bytes, int32_t pixel_bytes, int64_t stride_bytes,
                         const fd_views *view, void *out, const fd_format *format, const fd_options *options);

/* Fills RGB pixels of `out_size_px` (width, height) from others by one FD_AFFINE or FD_PERSPECTIVE. */
FD_API int32_t fd_warp(const uint8_t *rgb, int32_t width, int32_t height, const fd_effect *effect,
                       const int32_t out_size_px[2], uint8_t *out);

/* Does effects to RGB pixels (height, width, 3) and stores them in another format; out may be the pixels themselves if
 * that is theirs. */
FD_API int32_t fd_convert(const uint8_t *rgb, int32_t width, int32_t height, const fd_effect *effects,
                          int64_t effect_count, void *out, const fd_format *format);

/* Makes the index of a JPEG (jpeg_index.h, docs/format.md), by which a window of it is decoded without what lies around
 * it.  step: MCUs from one entry to the next in a row, 0 for one entry a row.  FD_UNSUPPORTED for images that are not
 * decoded by it.  On FD_OK *index is to be given to fd_free. */
FD_API int32_t fd_index(const uint8_t *data, int64_t data_bytes, int32_t step, const fd_options *options,
                        uint8_t **index, int64_t *index_bytes);

/* Makes a record of a JPEG whose coefficients lie open (unpacked.h, docs/format.md).  All that decodes files takes such
 * records, too.  FD_UNSUPPORTED for files that have none, and if restorable is not 0 for those that cannot be restored
 * from one byte for byte, which is tried then.  On FD_OK *record is to be given to fd_free. */
FD_API int32_t fd_unpack(const uint8_t *data, int64_t data_bytes, const fd_options *options, int32_t restorable,
                         uint8_t **record, int64_t *record_bytes);

/* The file that a record was made of.  On FD_OK *file is to be given to fd_free. */
FD_API int32_t fd_restore(const uint8_t *record, int64_t record_bytes, const fd_options *options, uint8_t **file,
                          int64_t *file_bytes);

/* Stores a JPEG's coefficients anew: baseline, Huffman tables made for it, no metadata, the same pixels.  restart_rows:
 * rows of MCUs between restart markers, 0 for none.  On FD_OK *repacked is to be given to fd_free. */
FD_API int32_t fd_repack(const uint8_t *data, int64_t data_bytes, int32_t restart_rows, const fd_options *options,
                         uint8_t **repacked, int64_t *repacked_bytes, char *message);
FD_API void fd_free(uint8_t *memory);

/* Philox-4x32-10: four 32-bit words for each of N counters (first[i], second[i], third[i], fourth), as four columns of
 * N. The low 32 bits of a counter's parts count.  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
 */
FD_API void fd_philox(int64_t count, const int64_t *first, const int64_t *second, const int64_t *third, int64_t fourth,
                      const uint32_t key[2], uint64_t *words);

/* N numbers of the standard normal distribution for one sample, four of each counter (index, occurrence, 0..., stream).
 * Source: Box and Muller, "A note on the generation of random normal deviates", 1958. */
FD_API void fd_normals(int64_t count, int64_t index, int64_t occurrence, int64_t stream, const uint32_t key[2],
                       float *out);

#ifdef __cplusplus
}
#endif
#endif
