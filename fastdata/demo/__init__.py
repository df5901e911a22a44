"""The demonstration: sample images, measurements, one trained epoch, and a report."""
