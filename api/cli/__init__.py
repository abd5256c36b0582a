"""The commands of `penstock`, each in a file or a folder of its own."""
