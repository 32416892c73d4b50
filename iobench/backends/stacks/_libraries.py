"""The libraries that read and decode, which every stack has for the loaders."""

DECODING = {
    "lmdb": "lmdb",
    "h5py": "h5py",
    "plyvel": "plyvel",
    "simplejpeg": "simplejpeg",
    "cv2": "opencv-python-headless",
    "blake3": "blake3",
    "nvidia.dali": "nvidia-dali-cuda120",
}
