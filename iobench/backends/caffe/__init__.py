"""Caffe: its prototxt files, nets, data layers and log, written and read in any Python."""
