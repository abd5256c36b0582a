"""`make kit`: a folder with all wheels for an installation without a network, and what installs them."""
