#include "jpeg/repack.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <jpeglib.h>
#include <memory>

namespace fastdata {
namespace {

constexpr size_t kFirstRoom = size_t{64} << 10;

// libjpeg reports errors by jumping out, so everything that must be freed lives here.
struct Job {
    jpeg_decompress_struct from{};
    jpeg_compress_struct to{};
    jpeg_error_mgr errors{};
    jpeg_destination_mgr target{};
    std::jmp_buf jump{};
    fd_status failure = FD_CORRUPT;  // what a jump means
    unsigned char *memory = nullptr; // the output; libjpeg's own destination frees it behind its owner's back
    size_t room = 0;
    char message[JMSG_LENGTH_MAX] = "";

    ~Job() {
        if (setjmp(jump) == 0) {
            jpeg_destroy_compress(&to);
            jpeg_destroy_decompress(&from);
        }
        std::free(memory);
    }

    // Doubles the room behind what has been written.
    void grow() {
        const size_t written = room, wanted = room == 0 ? kFirstRoom : 2 * room;
        void *const larger = std::realloc(memory, wanted);
        if (larger == nullptr) {
            failure = FD_OUT_OF_MEMORY;
            std::longjmp(jump, 1);
        }
        memory = static_cast<unsigned char *>(larger);
        room = wanted;
        target.next_output_byte = memory + written;
        target.free_in_buffer = room - written;
    }
    size_t size() const { return room - target.free_in_buffer; }
};

Job &job_of(j_compress_ptr jpeg) {
    return *static_cast<Job *>(jpeg->client_data);
}

void write_to_memory(Job &job) {
    job.target.init_destination = [](j_compress_ptr jpeg) { job_of(jpeg).grow(); };
    job.target.empty_output_buffer = [](j_compress_ptr jpeg) -> boolean {
        job_of(jpeg).grow(); // called when all of it is full
        return TRUE;
    };
    job.target.term_destination = [](j_compress_ptr) {};
    job.to.dest = &job.target;
}

void stop(j_common_ptr jpeg) {
    auto &job = *static_cast<Job *>(jpeg->client_data);
    jpeg->err->format_message(jpeg, job.message);
    std::longjmp(job.jump, 1);
}

void stop_at_warning(j_common_ptr jpeg, int level) {
    if (level < 0) // the data is damaged
        stop(jpeg);
}

bool is_supported(const jpeg_decompress_struct &jpeg) {
    const bool colours = jpeg.jpeg_color_space == JCS_YCbCr || jpeg.jpeg_color_space == JCS_GRAYSCALE ||
                         jpeg.jpeg_color_space == JCS_RGB;
    return colours && jpeg.data_precision == 8;
}

// The work between setjmp and the end; nothing here owns memory.
fd_status run(Job &job, std::span<const uint8_t> data, const JpegLimits &limits, int restart_rows) {
    jpeg_create_decompress(&job.from);
    jpeg_create_compress(&job.to);
    if (!is_countable(data))
        return FD_UNSUPPORTED;
    job.from.mem->max_memory_to_use = job.to.mem->max_memory_to_use = limits.memory();
    jpeg_mem_src(&job.from, data.data(), static_cast<unsigned long>(data.size()));
    if (jpeg_read_header(&job.from, TRUE) != JPEG_HEADER_OK || !is_supported(job.from))
        return FD_UNSUPPORTED;
    if (static_cast<int64_t>(job.from.image_width) * job.from.image_height > limits.pixels)
        return FD_LIMIT;
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(&job.from);
    if (job.from.input_scan_number > limits.scans)
        return FD_LIMIT;
    jpeg_copy_critical_parameters(&job.from, &job.to);
    job.to.optimize_coding = TRUE;
    job.to.restart_in_rows = restart_rows;
    write_to_memory(job);
    jpeg_write_coefficients(&job.to, coefficients);
    jpeg_finish_compress(&job.to);
    jpeg_finish_decompress(&job.from);
    return FD_OK;
}

} // namespace

fd_status repack_jpeg(std::span<const uint8_t> data, const JpegLimits &limits, int restart_rows,
                      std::vector<uint8_t> &repacked, std::string &message) {
    const auto job = std::make_unique<Job>();
    job->from.err = job->to.err = jpeg_std_error(&job->errors);
    job->from.client_data = job->to.client_data = job.get();
    job->errors.error_exit = stop;
    job->errors.emit_message = stop_at_warning;
    job->errors.output_message = [](j_common_ptr) {};
    if (setjmp(job->jump) != 0) {
        message = job->message;
        return job->failure;
    }
    const fd_status status = run(*job, data, limits, restart_rows);
    if (status == FD_OK)
        repacked.assign(job->memory, job->memory + job->size());
    return status;
}

} // namespace fastdata
