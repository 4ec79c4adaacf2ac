terraform {
  required_version = ">= 1.5, < 2.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.90, < 6.0"
    }
  }
}

provider "aws" {
  region = var.region

  # Its list of regions is as old as the provider: a region that opened later would be invalid.
  skip_region_validation = true

  # The default, 25, keeps asking for many minutes where a zone has no capacity.
  max_retries = var.max_retries

  default_tags {
    tags = local.all_tags
  }
}
