"""What Penstock tells about itself. Called by all packages; imports none of them."""
