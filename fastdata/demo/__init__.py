"""The `fastdata demo` command: sample images, measurements, one trained epoch, and a report."""
