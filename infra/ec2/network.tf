data "aws_ec2_instance_type_offerings" "this" {
  for_each      = var.zone == "" ? local.types : toset([])
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = [each.key]
  }
}

locals {
  # None are asked where the zone is given, and setintersection wants at least one.
  # Local Zones (us-west-2-lax-1a) and Wavelength Zones are among them where an account has opted in.
  offering = [
    for zone in try(sort(setintersection([for type in data.aws_ec2_instance_type_offerings.this : toset(type.locations)]...)), []) :
    zone if can(regex("^${var.region}[a-z]$", zone))
  ]
  zone = var.zone != "" ? var.zone : try(local.offering[0], "none")
}

resource "aws_vpc" "this" {
  cidr_block = var.cidr
  tags       = { Name = var.cluster_id }
}

resource "aws_subnet" "this" {
  vpc_id            = aws_vpc.this.id
  cidr_block        = cidrsubnet(var.cidr, 4, 0)
  availability_zone = local.zone
  tags              = { Name = var.cluster_id }

  lifecycle {
    precondition {
      condition     = local.zone != "none"
      error_message = "No availability zone of ${var.region} offers all of ${join(", ", local.types)}."
    }
  }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.cluster_id }
}

resource "aws_route_table" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.cluster_id }

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this.id
  }
}

resource "aws_route_table_association" "this" {
  subnet_id      = aws_subnet.this.id
  route_table_id = aws_route_table.this.id
}
