"""Work that is not shipped: it makes what the package ships, or studies how far an attack grows."""
