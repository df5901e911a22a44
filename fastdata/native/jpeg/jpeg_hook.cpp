#include "jpeg/jpeg_hook.h"

#include <array>
#include <csetjmp>
#include <cstdint>
#include <initializer_list>

namespace fastdata {
namespace {

// The head of libjpeg's own struct.  Source: libjpeg-turbo, jpegint.h; unchanged since libjpeg 6.
struct LibjpegEntropyDecoder {
    void (*start_pass)(j_decompress_ptr);
    DecodeMcu decode_mcu;
    boolean insufficient_data;
};

constexpr uint8_t kStep = 16; // of quantisation
constexpr int kSide = 8;

// A grey JPEG of one block, without any coefficient.
constexpr auto kGrey = [] {
    std::array<uint8_t, 143> file{};
    size_t at = 0;
    const auto put = [&](std::initializer_list<int> bytes) {
        for (const int byte : bytes)
            file[at++] = static_cast<uint8_t>(byte);
    };
    const auto repeat = [&](int byte, int times) {
        for (int i = 0; i < times; ++i)
            put({byte});
    };
    put({0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0});
    repeat(kStep, 64);
    put({0xFF, 0xC0, 0, 11, 8, 0, kSide, 0, kSide, 1, 1, 0x11, 0});
    for (const int table : {0x00, 0x10}) { // with one code, of one bit: no difference, end of block
        put({0xFF, 0xC4, 0, 20, table, 1});
        repeat(0, 16);
    }
    put({0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0, 0x3F, 0xFF, 0xD9});
    return file;
}();

struct Trial {
    jpeg_decompress_struct jpeg{};
    jpeg_error_mgr errors{};
    jmp_buf jump;
};

// Decodes that file with a coefficient put in, and looks if it is seen.
bool is_replaced() {
    static Trial trial; // its values outlast a jump
    jpeg_decompress_struct &jpeg = trial.jpeg;
    jpeg.err = jpeg_std_error(&trial.errors);
    jpeg.client_data = &trial;
    trial.errors.error_exit = [](j_common_ptr failed) { longjmp(static_cast<Trial *>(failed->client_data)->jump, 1); };
    trial.errors.output_message = [](j_common_ptr) {};
    if (setjmp(trial.jump) != 0) {
        jpeg_destroy_decompress(&jpeg);
        return false;
    }
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, kGrey.data(), kGrey.size());
    jpeg_read_header(&jpeg, TRUE);
    jpeg_start_decompress(&jpeg);
    replace_decode_mcu(jpeg, [](j_decompress_ptr, JBLOCKROW *blocks) -> boolean {
        blocks[0][0][0] = kSide;
        return TRUE;
    });
    bool good = true;
    while (jpeg.output_scanline < jpeg.output_height) {
        std::array<JSAMPLE, kSide> levels{};
        JSAMPROW row = levels.data();
        jpeg_read_scanlines(&jpeg, &row, 1);
        for (const int level : levels)
            good = good && level == 128 + kStep;
    }
    jpeg_destroy_decompress(&jpeg);
    return good;
}

const bool kReplaces = is_replaced();

} // namespace

void replace_decode_mcu(jpeg_decompress_struct &jpeg, DecodeMcu decode_mcu) {
    reinterpret_cast<LibjpegEntropyDecoder *>(jpeg.entropy)->decode_mcu = decode_mcu;
}

bool replaces_decode_mcu() {
    return kReplaces;
}

} // namespace fastdata
