"""Reads request bodies leniently and extracts `Features`: what a request says about its answer."""
