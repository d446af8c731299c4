//! Packed blocks: slots of one size in large preallocated files, for blocks so small that a file each would be
//! directory work more than data.
