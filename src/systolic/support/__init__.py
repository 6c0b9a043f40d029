"""Small tools without knowledge of TPUs: untrusted input, whole files, bug reports, optional packages."""
